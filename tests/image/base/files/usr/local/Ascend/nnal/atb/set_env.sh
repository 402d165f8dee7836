# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Like ATB's: it looks for options of its own among the arguments, and reads unset variables.
export STANDIN_ARGUMENTS="$*"
export STANDIN_ATB=${ZSH_VERSION}set
