# Functions of the scripts that show that a test finds faults: they put known ones, one after the
# other, into a copy of what is committed, and expect the test to fail there. A script sets `test`,
# the command that runs the test, and reads this file from the root of the repository.

export CARGO_TARGET_DIR=$(realpath -m "${CARGO_TARGET_DIR:-target}")/plant
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
base=$(git rev-parse HEAD)
git archive "$base" | tar -xm -C "$copy"
wanted=("$@")
missed=0

# edit FILE FROM TO: replaces a text that the file has once.
edit() {
    FROM=$2 TO=$3 perl -0pi -e 'BEGIN { $found = 0 } $found += s/\Q$ENV{FROM}\E/$ENV{TO}/g; END { exit($found != 1) }' "$copy/$1" || {
        echo "$1 does not have \"$2\" once any more: this script is out of date" >&2
        exit 2
    }
}

# fault NAME SIGN: expects the test to show by SIGN what was edited, and undoes the edits. All
# faults, if none is wanted by name.
fault() {
    local name=$1 sign=$2 output
    if ((${#wanted[@]} == 0)) || [[ " ${wanted[*]} " == *" $name "* ]]; then
        if output=$(cd "$copy" && "${test[@]}" 2>&1); then
            echo "$name: MISSED"
            missed=1
        elif ! grep -m1 -aE "$sign" <<<"$output" | sed "s/^/$name: found: /"; then
            echo "$name: MISSED, but the test failed:"
            tail -n 30 <<<"$output"
            missed=1
        fi
    fi
    git archive "$base" kernels runtime | tar -xm -C "$copy"
}
