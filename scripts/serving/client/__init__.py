# SPDX-License-Identifier: Apache-2.0
"""A running server, asked as its users ask."""
