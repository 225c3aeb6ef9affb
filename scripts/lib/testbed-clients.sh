# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# shellcheck disable=SC2034 # variables set here are read in the other files
#
# Builds the clients that Debian has not: nerdctl, crictl, critest and ginkgo, which runs critest in parallel. Owns
# $CACHE/clients-<key>: static programs, for every suite. They are built on this machine, where the Go module proxy can
# be reached, by the machine's own Go; inside they are in /usr/local/lib/crab-testbed.
# Where they cannot be built the testbed goes without: CLIENTS is empty then, and NO_CLIENTS says why, to those who look
# for them inside as well. Refuses: to install a Go toolchain that is not Debian's, and to name a proxy.

CLIENTS=    # the directory, once clients_ensure has returned; empty if there is none
NO_CLIENTS= # why

# All versions are here.
CLIENTS_GO=1.24.3 # what the modules below ask for
NERDCTL=github.com/containerd/nerdctl/v2@v2.2.1
CRI_TOOLS=sigs.k8s.io/cri-tools@v1.34.0

# How long not to try again what has failed, in minutes.
CLIENTS_PATIENCE=30

clients_key() {
    printf '%s\n' "$(dpkg --print-architecture)" "$(sha256sum <"$LIB/testbed-clients.sh")" | sha256sum | cut -c1-16
}

clients_ensure() {
    local dir
    dir=$CACHE/clients-$(clients_key)
    if [ ! -d "$dir" ]; then
        exec {BUILD_LOCK}>"$CACHE/build.lock"
        flock "$BUILD_LOCK"
        [ -d "$dir" ] || clients_try "$dir"
        exec {BUILD_LOCK}>&-
    fi
    [ ! -d "$dir" ] || CLIENTS=$dir
}

# Makes the directory, or sets NO_CLIENTS.
clients_try() {
    local dir=$1 go log=$CACHE/clients.log
    if [ -n "$(find "$dir.failed" -mmin "-$CLIENTS_PATIENCE" 2>/dev/null)" ]; then
        NO_CLIENTS=$(<"$dir.failed")
    elif ! go=$(clients_go); then
        NO_CLIENTS="there is no Go $CLIENTS_GO or newer on this machine, and none to be installed"
    else
        note "building nerdctl, crictl and critest (about two minutes)"
        rm -rf "$dir.tmp" "$dir.failed"
        mkdir -p "$dir.tmp/work"
        if clients_build "$go" "$dir.tmp" >"$log" 2>&1; then
            rm -rf "$dir.tmp/work"
            mv -T "$dir.tmp" "$dir"
            BUILT=1
            return
        fi
        rm -rf "$dir.tmp"
        # One line: those of the tests that skip for it are counted.
        NO_CLIENTS="they could not be built, as where the Go module proxy is not reached: $(tail -n 1 "$log" | head -c 300)"
        echo "$NO_CLIENTS" >"$dir.failed"
    fi
    note "without nerdctl, crictl and critest: $NO_CLIENTS"
}

# A Go that is new enough: the one on PATH, Debian's own beside it, or the one that Debian can install.
clients_go() {
    local go offered
    for go in go /usr/lib/go/bin/go; do
        if clients_go_serves "$go"; then
            command -v "$go"
            return
        fi
    done
    offered=$(apt-cache policy golang-go 2>/dev/null | sed -nE 's/^ *Candidate: [0-9]+:([0-9.]+).*/\1/p')
    [ -n "$offered" ] && clients_newer "$offered" || return 1
    # In a shell of its own: its failure is no end of the testbed.
    (package_install golang-go >&2) && clients_go_serves go && command -v go
}

clients_go_serves() {
    local version
    version=$("$1" env GOVERSION 2>/dev/null) && clients_newer "${version#go}"
}

clients_newer() {
    printf '%s\n' "$CLIENTS_GO" "$1" | sort -CV
}

clients_build() {
    local go=$1 bin=$2 cri nerdctl=$2/work/nerdctl
    # Static, of the toolchain that is there, and with no paths of this machine in them.
    local -x CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS='-trimpath -buildvcs=false' GOWORK=off
    cri=$(clients_source "$go" "$CRI_TOOLS") || return
    "$go" build -C "$cri" -ldflags '-s -w' -o "$bin/crictl" ./cmd/crictl || return
    "$go" test -C "$cri" -c -ldflags '-s -w' -o "$bin/critest" ./cmd/critest || return
    "$go" build -C "$cri" -ldflags '-s -w' -o "$bin/ginkgo" github.com/onsi/ginkgo/v2/ginkgo || return

    # Its go.mod replaces a module of its tests by a directory that the proxy does not serve. No `go install' accepts
    # that; and a file of its command's tests, which the build takes for a part of the command, is all that wants it.
    local tests=github.com/containerd/nerdctl/mod/tigron
    cp -r --no-preserve=mode "$(clients_source "$go" "$NERDCTL")" "$nerdctl" || return
    rm "$nerdctl"/cmd/nerdctl/helpers/testing*.go || return
    "$go" mod edit -droprequire "$tests" -dropreplace "$tests@v0.0.0" "$nerdctl/go.mod" || return
    "$go" build -C "$nerdctl" -ldflags "-s -w -X github.com/containerd/nerdctl/v2/pkg/version.Version=${NERDCTL##*@}" \
        -o "$bin/nerdctl" ./cmd/nerdctl
}

# The directory of a module's source, by whichever way this machine's Go gets modules.
clients_source() {
    local said
    if ! said=$("$1" mod download -json "$2"); then
        sed -nE 's/^\t"Error": "(.*)",?$/\1/p' <<<"$said" >&2
        return 1
    fi
    sed -nE 's/^\t"Dir": "(.*)",?$/\1/p' <<<"$said"
}
