# SPDX-License-Identifier: Apache-2.0
"""What surrounds a running server."""
