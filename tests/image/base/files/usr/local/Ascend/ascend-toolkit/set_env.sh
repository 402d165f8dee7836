# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Like CANN's: it reads variables that may be unset.
export LD_LIBRARY_PATH=/usr/local/Ascend/cann-9.0.0/lib64:$LD_LIBRARY_PATH
# shellcheck disable=SC2154
export STANDIN_TOOLKIT=${ZSH_VERSION}set
echo "a line that set_env.sh prints"
