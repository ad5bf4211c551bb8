#!/bin/sh
# Installs a job's packages in its image: with conda if the file has packages for conda, else with pip in addition to
# the image's packages. It runs as root in the first stage of a build, of which only the folder $prefix is kept. Lines
# that begin with `gpuinfra:` report progress; `gpuinfra-refusal:` and `gpuinfra-help:` are an error and its fix.
set -eu
cd "$(dirname "$0")"
# prefix, python_text, python_first, python_end, python_names, python_is_known, only_conda_has, has_channels
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
            "/opt/anaconda3/bin/$name" "/root/miniconda3/bin/$name" "${MAMBA_EXE:-}" "${CONDA_EXE:-}"; do
            if [ "${each##*/}" = "$name" ] && conda=$(command -v "$each"); then
                return 0
            fi
        done
    done
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
        "$prefix/bin/python" -m pip install --no-cache-dir --requirement "$1"
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
if [ -z "$only_conda_has" ] && [ -n "$python_is_known" ] && find_python; then
    make_venv
    install_by_pip tools.txt "pip's own parts"
elif find_conda; then
    install_by_conda
elif [ -n "$only_conda_has" ]; then
    refuse "the base image has no conda, and the file asks conda for $only_conda_has" \
        "name a base image with conda as \`baseDockerImage\`, or move these packages under \`pip:\`"
else
    refuse "the base image has no conda and $(pythons), and the file asks for $asked" \
        "name a base image with conda or with that Python as \`baseDockerImage\`, or change \`python=\` in the file"
fi
install_by_pip requirements.txt "packages by pip"

"$prefix/bin/python" -c pass || refuse "the environment's Python does not run" "look at the lines above"
fits "$prefix/bin/python" ||
    refuse "the environment has Python $(version_of "$prefix/bin/python"), and the file asks for $asked" \
        "look for a package that brings another Python along"
if [ -s requirements.txt ]; then
    "$prefix/bin/python" -m pip check 2>&1 || say "warning: some packages do not fit each other"
fi
forget_secrets
say "the environment has Python $(version_of "$prefix/bin/python")"
