# SPDX-License-Identifier: Apache-2.0
"""The patch engine: which files, in which state, and how to change them all or none."""
