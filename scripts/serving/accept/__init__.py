# SPDX-License-Identifier: Apache-2.0
"""``kit accept``: the proof on the real machine, in named phases that can be stopped and gone on with."""
