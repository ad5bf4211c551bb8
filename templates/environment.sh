#!/bin/sh
# Installs a job's packages: with conda if the file has packages for conda, else with pip or uv. In an image, it runs as
# root in the first stage of a build, of which only the folder $prefix is kept, and the environment includes the image's
# packages. On a machine, it runs as the user of the jobs, and the environment is $isolated. Lines that begin with `gpuinfra:` report progress; `gpuinfra-refusal:` and `gpuinfra-help:` are an error and its fix.
set -eu
cd "$(dirname "$0")"
# prefix (on a machine, it is a variable), isolated, python_text, python_first, python_end, python_names,
# python_is_known, only_conda_has, has_channels
isolated=''
. ./settings

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PYTHONNOUSERSITE=1
export CONDA_ALWAYS_YES=1 MAMBA_ALWAYS_YES=1 DEBIAN_FRONTEND=noninteractive
# The image's values of these variables are for its own packages.
unset PYTHONHOME PIP_TARGET PIP_PREFIX PIP_USER PIP_REQUIRE_VIRTUALENV || :

say() {
    printf 'gpuinfra: %s\n' "$*"
}

refuse() {
    printf 'gpuinfra-refusal: %s\n' "$1"
    printf 'gpuinfra-help: %s\n' "$2"
    exit 3
}

# 3.5.2 is 3005002, so that versions can be compared.
number_of() {
    "$1" -c 'import sys; print("%d%03d%03d" % tuple(sys.version_info[:3]))' 2>/dev/null
}

version_of() {
    "$1" -c 'import sys; print("%d.%d.%d" % tuple(sys.version_info[:3]))' 2>/dev/null
}

fits() {
    number=$(number_of "$1") && [ "$number" -ge "$python_first" ] && [ "$number" -lt "$python_end" ]
}

# Finds the image's conda, the fastest program first.
find_conda() {
    for name in micromamba mamba conda; do
        for each in "$name" "/opt/conda/bin/$name" "/opt/miniconda/bin/$name" "/opt/miniconda3/bin/$name" \
            "/opt/anaconda3/bin/$name" "/root/miniconda3/bin/$name" "/anaconda/bin/$name" "${HOME:-}/miniconda3/bin/$name" \
            "${HOME:-}/miniforge3/bin/$name" "${HOME:-}/anaconda3/bin/$name" "${MAMBA_EXE:-}" "${CONDA_EXE:-}"; do
            if [ "${each##*/}" = "$name" ] && conda=$(command -v "$each"); then
                return 0
            fi
        done
    done
    return 1
}

# Finds uv for an isolated environment, and gives it the settings of pip.
find_uv() {
    [ -n "$isolated" ] || return 1
    for each in uv "${HOME:-}/.local/bin/uv" "${HOME:-}/.cargo/bin/uv"; do
        if uv=$(command -v "$each"); then
            [ -z "${PIP_INDEX_URL:-}" ] || export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$PIP_INDEX_URL}"
            [ -z "${PIP_EXTRA_INDEX_URL:-}" ] || export UV_INDEX="${UV_INDEX:-$PIP_EXTRA_INDEX_URL}"
            links=$(printf %s "${PIP_FIND_LINKS:-}" | tr ' ' ',')
            [ -z "$links" ] || export UV_FIND_LINKS="${UV_FIND_LINKS:-$links}"
            # As pip does, take the best version of all indexes.
            export UV_INDEX_STRATEGY=unsafe-best-match UV_NO_PROGRESS=1
            return 0
        fi
    done
    uv=''
    return 1
}

find_python() {
    for name in $python_names; do
        if python=$(command -v "$name") && fits "$python"; then
            return 0
        fi
    done
    return 1
}

# Prints the image's versions of Python, for a message.
pythons() {
    found=
    for name in python python3; do
        if version=$(version_of "$name"); then
            case " $found " in
            *" $version "*) ;;
            *) found="${found:+$found }$version" ;;
            esac
        fi
    done
    if [ -n "$found" ]; then
        echo "Python $found" | sed 's/ \([0-9.]*\) \([0-9.]*\)$/ \1 and \2/'
    else
        echo "no Python"
    fi
}

install_by_conda() {
    say "making the environment with ${conda##*/}"
    # A build of an image sees no GPU, so conda would choose packages for CPUs. Images with CUDA say which version.
    if [ -z "$isolated" ] && [ -n "${CUDA_VERSION:-}" ]; then
        export CONDA_OVERRIDE_CUDA="${CONDA_OVERRIDE_CUDA:-${CUDA_VERSION%.*}}"
    fi
    case ${conda##*/} in
    # micromamba has no default channels.
    micromamba)
        if [ -n "$has_channels" ]; then
            "$conda" create --yes --prefix "$prefix" --file environment.yml
        else
            "$conda" create --yes --prefix "$prefix" --channel conda-forge --file environment.yml
        fi
        ;;
    *) "$conda" env create --quiet --prefix "$prefix" --file environment.yml ;;
    esac
}

make_isolated() {
    if [ -n "$uv" ]; then
        say "making the environment with uv"
        "$uv" venv --quiet --python "${python:-${python_text#python}}" "$prefix" && return 0
        refuse "uv can make no environment with ${python:-$asked}" "look at the lines above"
    fi
    say "making the environment with $("$python" --version 2>&1)"
    "$python" -m venv "$prefix" || "$python" -m virtualenv "$prefix" ||
        refuse "$python can make no environment: it has neither \`venv\` nor \`virtualenv\`" \
            "install uv on the machine (\`pip install uv\`), or \`sudo apt install python3-venv\`"
}

# Creates an environment that includes the image's packages, because its GPU frameworks match its CUDA.
make_venv() {
    say "making the environment with $("$python" --version 2>&1) of the image, and pip"
    "$python" -m venv --system-site-packages --without-pip "$prefix" ||
        "$python" -m virtualenv --system-site-packages "$prefix" ||
        refuse "the image's $python can make no environment: it has neither \`venv\` nor \`virtualenv\`" \
            "name a base image with conda, or one whose Python is whole"
    # If the image's Python is itself in a virtual environment, add the packages of that environment.
    "$python" -c '
import os, subprocess, sys, sysconfig
if sys.prefix != getattr(sys, "base_prefix", sys.prefix):
    own = subprocess.check_output([sys.argv[1], "-c", "import sysconfig; print(sysconfig.get_path(\"purelib\"))"])
    with open(os.path.join(own.decode().strip(), "gpuinfra-image.pth"), "w") as out:
        out.write("\n".join(sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})) + "\n")
' "$prefix/bin/python"
    "$prefix/bin/python" -c 'import pip' 2>/dev/null ||
        "$prefix/bin/python" -m ensurepip >/dev/null 2>&1 || [ ! -s requirements.txt ] ||
        refuse "the image's $python has no pip" "name a base image with pip or conda"
}

install_by_pip() {
    if [ -s "$1" ]; then
        say "installing $2"
        if [ -n "$uv" ]; then
            "$uv" pip install --python "$prefix/bin/python" --requirement "$1"
        elif [ -n "$isolated" ]; then
            "$prefix/bin/python" -m pip install --requirement "$1"
        else
            "$prefix/bin/python" -m pip install --no-cache-dir --requirement "$1"
        fi
    fi
}

# Removes passwords from the records in which installers store the sources of packages.
forget_secrets() {
    [ -s secrets ] || return 0
    "$prefix/bin/python" -c '
import os, sys
with open("secrets", "rb") as lines:
    secrets = lines.read().split(b"\n")
for folder, _, names in os.walk(sys.argv[1]):
    # Code is not changed: a password may be a word in it.
    is_record = os.path.basename(folder) == "conda-meta" or ".git" in folder.split(os.sep)
    for name in names:
        path = os.path.join(folder, name)
        if not (is_record or name == "direct_url.json") or not os.path.isfile(path):
            continue
        with open(path, "rb") as file:
            content = clean = file.read()
        for secret in filter(None, secrets):
            clean = clean.replace(secret, b"***")
        if clean != content:
            with open(path, "wb") as file:
                file.write(clean)
' "$prefix"
}

mkdir -p "${prefix%/*}"
asked=${python_text:-any Python 3}
if [ -n "$isolated" ]; then
    place='the machine' with_conda='install conda on it' with_python='install uv, conda or that Python on it'
else
    place='the base image' with_conda="name a base image with conda as \`baseDockerImage\`"
    with_python="name a base image with conda or with that Python as \`baseDockerImage\`"
fi
uv='' python=''
if [ -z "$only_conda_has" ] && [ -n "$python_is_known" ]; then
    find_python || python=''
    find_uv || :
fi
if [ -z "$isolated" ] && [ -x "$prefix/bin/python" ]; then
    say "adding to an environment that has some of the packages"
elif [ -n "$isolated" ] && [ -n "$python$uv" ]; then
    make_isolated
    install_by_pip tools.txt "pip's own parts"
elif [ -n "$python" ]; then
    make_venv
    install_by_pip tools.txt "pip's own parts"
elif find_conda; then
    install_by_conda
elif [ -n "$only_conda_has" ]; then
    refuse "$place has no conda, and the file asks conda for $only_conda_has" \
        "$with_conda, or move these packages under \`pip:\`"
else
    refuse "$place has no conda and $(pythons), and the file asks for $asked" \
        "$with_python, or change the version in the file"
fi
install_by_pip requirements.txt "packages by pip"

"$prefix/bin/python" -c pass || refuse "the environment's Python does not run" "look at the lines above"
fits "$prefix/bin/python" ||
    refuse "the environment has Python $(version_of "$prefix/bin/python"), and the file asks for $asked" \
        "look for a package that brings another Python along"
if [ -s requirements.txt ]; then
    if [ -n "$uv" ]; then
        "$uv" pip check --python "$prefix/bin/python" 2>&1
    else
        "$prefix/bin/python" -m pip check 2>&1
    fi || say "warning: some packages do not fit each other"
fi
forget_secrets
say "the environment has Python $(version_of "$prefix/bin/python")"
