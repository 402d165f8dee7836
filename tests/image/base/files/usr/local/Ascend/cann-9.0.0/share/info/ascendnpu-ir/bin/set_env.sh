# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
export STANDIN_BISHENG=set
