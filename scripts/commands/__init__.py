# SPDX-License-Identifier: Apache-2.0
"""The verbs of the kit: each from its options to its answer."""
