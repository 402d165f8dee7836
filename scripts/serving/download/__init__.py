# SPDX-License-Identifier: Apache-2.0
"""The checkpoint, by the library of the hub it lies on."""
