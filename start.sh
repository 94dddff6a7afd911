#!/usr/bin/env bash
# Start Encore: install what is missing, check, launch the vLLM engine, wait for it, start the chat.
# This file only makes .venv and parses the command line; the rest is llm_backend/start.py.
set -Eeuo pipefail

ROOT=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")

usage() {
  cat <<'HELP'
Usage: ./start.sh [COMMAND] [--detach]

  (none)     engine and chat; Ctrl-C ends both
  engine     the engine alone
  app        the chat alone
  stop       end what start.sh started, and nothing else
  status     describe both; exit code 0 ready, 1 loading, 2 not running
  logs       follow the engine's log, llm.log
  install    install everything, start nothing

  --detach   return when all is ready and leave it running

Examples:
  ./start.sh
  ENCORE_PROFILE=fast ./start.sh --detach
  ENCORE_MODEL=/models/Phi-4-mini-reasoning ./start.sh engine

Settings are variables named ENCORE_…, or lines in .env; .env.example lists them all.
Relative paths in them are taken from the folder of start.sh.

Exit codes: 0 done, 2 refused (one sentence says why), 3 already running, 130 and 143 ended by a
signal, else the exit code of an engine that died.
HELP
}

say() { printf '%s\n' "$*" >&2; }

die() {
  say "$@"
  exit 2
}

# The Python that makes .venv; everything after that uses .venv's own.
find_python() {
  local python=${ENCORE_PYTHON:-python3}
  command -v -- "$python" >/dev/null ||
    die "Python was not found as $python. Install Python 3.11 or 3.12, or set ENCORE_PYTHON."
  "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' ||
    die "Encore needs Python 3.11 or 3.12, and $python is $("$python" -V 2>&1). Set ENCORE_PYTHON."
  "$python" -c 'import ensurepip, venv' 2>/dev/null ||
    die "$python cannot make virtual environments. On Debian and Ubuntu: apt install python3-venv."
  printf '%s\n' "$python"
}

# What .venv/.encore-stamp holds once the given lock is installed. The folder belongs to it, because a
# virtual environment does not survive being moved.
stamp_of() {
  local digest
  digest=$(sha256sum <"$ROOT/locks/$1.lock")
  printf '%s %s\n' "${digest%% *}" "$ROOT/.venv"
}

is_installed() {
  local stamp=$ROOT/.venv/.encore-stamp lock
  [[ -f $stamp ]] || return 1
  for lock in "$@"; do
    [[ $(<"$stamp") != "$(stamp_of "$lock")" ]] || return 0
  done
  return 1
}

# Install .venv from locks/$1.lock; any of the locks named after it counts as installed too.
install_app() {
  is_installed "$@" && return
  local python log=$ROOT/.run/install.log began=$SECONDS
  [[ ! -L $ROOT/.venv ]] || # installing would empty whatever it points to
    die ".venv is a symbolic link, and what is there was not installed for this folder. Remove the link."
  python=$(find_python)
  mkdir -p "$ROOT/.run"
  say "Installing the app into .venv (once; 360 MB, about a minute)…"
  {
    "$python" -m venv --clear "$ROOT/.venv" &&
      pip_install --require-hashes --requirement "$ROOT/locks/$1.lock" &&
      pip_install --no-build-isolation --editable "$ROOT"
  } >>"$log" 2>&1 || die "Installing the app failed; the end of $log:"$'\n'"$(tail -n 5 "$log")"
  stamp_of "$1" >"$ROOT/.venv/.encore-stamp"
  say "App installed in $((SECONDS - began)) s."
}

pip_install() {
  "$ROOT/.venv/bin/python" -m pip install --no-input --disable-pip-version-check --no-deps "$@"
}

main() {
  local command=up lock=(app test)
  local -a options=()
  for argument in "$@"; do
    case $argument in
      -h | --help) usage && return ;;
      --detach) options+=(--detach) ;;
      --with-tests) lock=(test) ;; # for `make test`: also what the tests need
      engine | app | stop | status | logs | install) command=$argument ;;
      *) die "start.sh does not know $argument. Try ./start.sh --help." ;;
    esac
  done
  [[ -n ${ENCORE_MODEL-unset} ]] ||
    die "ENCORE_MODEL is set but empty. Name a folder or a hub model, or unset it for the default."
  cd -- "$ROOT"
  case $command in
    stop | status | logs) [[ -x .venv/bin/python ]] || die "Nothing is running: Encore is not installed." ;;
    *) install_app "${lock[@]}" ;;
  esac
  # Python resolves llm_backend from this folder, wherever it was called from.
  exec .venv/bin/python -m llm_backend.start "$command" ${options[@]+"${options[@]}"}
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  main "$@"
fi
