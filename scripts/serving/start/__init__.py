# SPDX-License-Identifier: Apache-2.0
"""What a start is given: profiles, the flags that people bring along, and a last look."""
