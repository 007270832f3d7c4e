"""The programs in bash of bash.py: what starts the script, what runs before each of its commands, and every program."""

# what they print for their files and words is real
TOOLS = ("awk", "basename", "bc", "cat", "chmod", "column", "cp", "cut", "dirname", "egrep", "expr", "fold", "getopt",
         "grep", "head", "jq", "ln", "mkdir", "mv", "paste", "readlink", "realpath", "rev", "sed", "seq", "sort", "tac",
         "tail", "tee", "touch", "tr", "uniq", "wc")
# what shells of /bin/sh find, which do not ask bash about a command that is not found
LAUNCHERS = ("bash", "sh", "env", "python", "python2", "python3", *(f"python3.{minor}" for minor in range(9, 15)),
             "torchrun", "accelerate", "deepspeed", "ray", "srun")

# words: seconds, BEFORE, PROGRAM, the arguments of the script; the script is standard input. Writes `begun`, the
# status, the line of the last command, bash's messages, and the records of BEFORE and PROGRAM, all ended by NUL
WITHIN = r"""
printf 'begun\0'; PATH=/ouro/real; seconds=$1
mkdir /ouro/calls && cat > "$OURO_SCRIPT" || exit 1
printf '%s' "$2" > /ouro/before; printf '%s' "$3" > /ouro/program; chmod +x /ouro/program
shift 3
for ((i = 0; i < 99; i++)); do echo "$OURO_NUMBER"; done > /ouro/stdin
(  # this shell itself must be able to start programs afterwards
  ulimit -u 64 -v 250000
  export PATH=/usr/bin BASH_ENV=/ouro/before
  exec /ouro/real/timeout -s KILL "$seconds" /ouro/real/bash -u "$OURO_SCRIPT" "$@" \
    < /ouro/stdin > /dev/null 2> /ouro/errors
)
status=$?
for ((i = 0; i < 20; i++)); do  # what runs in the background has a second
  set -- /proc/[0-9]*; (($# > 2)) || break; sleep 0.05
done
kill -9 -1  # all but this one: their number is limited
printf '%s\0' "$status" "$(cat /ouro/last 2> /dev/null)" "$(tail -c 1000000 /ouro/errors)"
cat /ouro/notes /ouro/calls/* 2> /dev/null
printf %65536s > /ouro/room || printf 'cut\0'  # records may be missing
exit 0
"""

# BASH_ENV: notes each command once, and the variables that are not set where it has a default for them. A program by
# its path, a sourced file, and the directory of a file that is written are there, as on the machine of the script
BEFORE = r"""
declare -A OURO_SEEN
command_not_found_handle() { /ouro/program "$@"; }
cd() { builtin cd "$@" 2> /dev/null || { mkdir -p -- "${!#}" && builtin cd "$@"; }; }
pushd() { mkdir -p -- "${!#}"; builtin pushd "$@" > /dev/null; }
ulimit() { :; }
kill() { :; }
ouro_place() {
  local ouro_path=${2//[\"\']/}
  [[ $1 == directory ]] && { [[ $ouro_path == */* ]] || return; ouro_path=${ouro_path%/*}/.ouro; }
  case $ouro_path in *'$('* | *'`'*) return ;; '~/'*) ouro_path=$HOME/${ouro_path#??} ;; esac
  eval "ouro_path=\"$ouro_path\""
  [[ -e $ouro_path || ($1 == program && $ouro_path != */*) ]] && return
  [[ $ouro_path != */* ]] || mkdir -p "${ouro_path%/*}"
  case $1 in program) ln -s /ouro/program "$ouro_path" ;; empty) : > "$ouro_path" && ouro_note source "$2" ;; esac
}
ouro_note() { printf '%s\0' 4 "$1" "$OURO_LINE" "${2:0:3000}" . >> /ouro/notes; }  # in one write
ouro_look() {
  local ouro_rest=$1 ouro_name ouro_words ouro_at PATH=/ouro/real
  ouro_note command "$1"
  while [[ $ouro_rest =~ \$\{([A-Za-z_0-9]+)(:?[-=+].*) ]]; do
    ouro_name=${BASH_REMATCH[1]} ouro_rest=${BASH_REMATCH[2]}
    if [[ $ouro_name == [0-9]* ]]; then (($# > ouro_name)) && continue; elif [[ -v $ouro_name ]]; then continue; fi
    ouro_note default "$ouro_name$ouro_rest"
  done
  read -rd '' -a ouro_words <<< "$1"
  while [[ ${ouro_words[0]-} == [A-Za-z_]*=* ]]; do ouro_words=("${ouro_words[@]:1}"); done
  case ${ouro_words[0]-} in
    source | .) ouro_place empty "${ouro_words[1]-}" ;;
    exec | command) ouro_place program "${ouro_words[1]-}" ;;
    */* | *'$'*) ouro_place program "${ouro_words[0]}" ;;
  esac
  for ((ouro_at = 0; ouro_at + 1 < ${#ouro_words[@]}; ouro_at++)); do
    [[ ${ouro_words[ouro_at]} != *'>' ]] || ouro_place directory "${ouro_words[ouro_at + 1]}"
  done
}
ouro_before() {
  if [[ $1 == "$OURO_SCRIPT" ]]; then export OURO_LINE=$2; printf '%-9s' "$2" 1<> /ouro/last; fi
  [[ ${OURO_SEEN[x$2]-} == "$3" ]] && return
  OURO_SEEN[x$2]=$3
  (trap - DEBUG; set +eux; ouro_look "${@:3}") 2> /dev/null || :
}
export OURO_SHELL=${OURO_SHELL-$$}
set -uaT
trap '[[ ${BASH_SOURCE[0]-} == /ouro/before ]] || ouro_before "${BASH_SOURCE[0]-}" "$LINENO" "$BASH_COMMAND" "$@"' DEBUG
"""

# every program: a tool if it finds its files, else a record of its words and variables, and a number
PROGRAM = r"""#!/ouro/real/bash -p
case $0 in /ouro/program) ;; /usr/bin/* | /bin/*) set -- "${0##*/}" "$@" ;; *) set -- "$0" "$@" ;; esac
[[ $1 == tail && " ${*:2}" == *\ -*([-0-9])[fF]* ]] && exit 0  # would follow a log for ever
if [[ -f /ouro/tools/$1 ]]; then
  exec 3>&1
  errors=$("/ouro/tools/$1" "${@:2}" 2>&1 >&3); status=$?
  [[ $errors == *'No such file'* || " ${*:2}" == *' '[a-z]*.[a-z]*=* ]] || exit "$status"
  [[ $errors == *'No such file'* ]] || OURO_NUMBER=  # words like overrides: recorded, without a number
fi
for ((i = 1; i <= $#; i++)); do  # of `srun bash -c ...` the inner script runs
  [[ ${!i} == @(bash|sh|*/bash|*/sh) ]] || continue
  next=${@:i+1:1}
  if [[ $i == $# || $next == -* || -f $next ]]; then exec /ouro/real/bash "${@:i+1}"; fi
done
[[ /dev/stdout -ef /dev/null || /dev/stdout -ef /proc/$OURO_SHELL/fd/1 ]] || is_read=1
mapfile -d '' -t variables < /proc/$$/environ
printf '%s\0' $(($# + ${#variables[@]} + 5)) call "${OURO_LINE-0}" "${is_read-}" $# "$@" "${variables[@]}" . \
  > "/ouro/calls/$EPOCHREALTIME.$$"
case $1 in *nvidia-smi) times=$OURO_NUMBER ;; *scontrol) times=64 ;; esac  # a line for each GPU, or host
[[ $OURO_NUMBER ]] || exit "$status"
for ((i = 0; i < ${times-1}; i++)); do echo "$OURO_NUMBER"; done
exit 0
"""
