# SPDX-License-Identifier: Apache-2.0
"""A running server, measured by vLLM's own benchmark and held against the guide."""
