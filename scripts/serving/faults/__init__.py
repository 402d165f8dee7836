# SPDX-License-Identifier: Apache-2.0
"""Error texts that people meet on the way to a running server: what causes them, what cures them.

What is known lies in ``rows/`` and ``codes/`` as TOML; the modules read it, find it in a text, put
causes before what follows from them, and say so.
"""
