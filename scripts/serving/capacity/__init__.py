# SPDX-License-Identifier: Apache-2.0
"""What fits on a card: weights, KV cache, head-room, and the ceiling of memory bandwidth."""
