# SPDX-License-Identifier: Apache-2.0
# As in the official image: a start without a terminal stops at the next line.
[ -z "$PS1" ] && return
source /usr/local/Ascend/ascend-toolkit/set_env.sh
source /usr/local/Ascend/cann-9.0.0/share/info/ascendnpu-ir/bin/set_env.sh
source /usr/local/Ascend/nnal/atb/set_env.sh
export LD_PRELOAD=/usr/lib/x86_64-linux-gnu/libjemalloc.so.2:
export LD_LIBRARY_PATH=/usr/local/Ascend/driver/lib64:/usr/local/Ascend/cann-9.0.0/lib64:/usr/local/lib
