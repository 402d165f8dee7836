# SPDX-License-Identifier: Apache-2.0
"""All checks of the doctor, in the order of its report."""

from . import cann, container, environment, installation, machine

CHECKS = (
    *installation.CHECKS,
    *machine.CHECKS,
    *cann.CHECKS,
    *container.CHECKS,
    *environment.CHECKS,
)
