# SPDX-License-Identifier: Apache-2.0
"""The machine before a start: devices, driver, packages, environment, and what each lacks."""
