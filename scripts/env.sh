# shellcheck shell=bash disable=SC2128
# Source me: puts this tree's programs and its Python package on the paths, and the Python of .venv unless an environment
# is active: TensorFlow, MXNet, or another PyTorch may be there.
#   . scripts/env.sh
DEFT_TREE=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE:-$0}")/.." && pwd)  # with a CDPATH, cd may go elsewhere, and prints
[ -e "$DEFT_TREE/scripts/env.sh" ] || DEFT_TREE=$(pwd)  # dash does not tell where this file is
case ":$PATH:" in
  *":$DEFT_TREE/build/bin:"*) ;;
  *)
    [ -n "${VIRTUAL_ENV:-}" ] || [ "${CONDA_DEFAULT_ENV:-base}" != base ] || PATH="$DEFT_TREE/.venv/bin:$PATH"
    PATH="$DEFT_TREE/build/bin:$PATH"
    ;;
esac
case ":${PYTHONPATH:-}:" in
  *":$DEFT_TREE/build/python:"*) ;;
  *) PYTHONPATH="$DEFT_TREE/build/python${PYTHONPATH:+:$PYTHONPATH}" ;;
esac
export PATH PYTHONPATH
# ccache shares its results between build folders and clones: paths below the tree count as relative.
# The sloppiness is what it needs to take precompiled headers; no source has the date of its compilation.
export CCACHE_BASEDIR="$DEFT_TREE" CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
unset DEFT_TREE  # not an option of Deft: an unknown DEFT_* variable is an error
