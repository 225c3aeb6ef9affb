# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# shellcheck disable=SC2034 # variables set here are read in the other files
#
# Makes the test images without a registry. Owns $CACHE/images-<suite>-<key>: busybox.tar, debian.tar and pause.tar,
# which holds a pod open; each one layer, and each both an OCI layout (for `ctr image import`) and a Docker archive (for
# `docker load`).
# critest.tar holds the images of critest (testbed-critest.sh). The key covers the root and both files. Files come from an installed Debian system (the cached root, or
# the host itself with --host) by the file lists of dpkg, never by copying a directory, so that nothing of a
# host but what its packages brought gets into an image.

IMAGES= # the directory, once images_ensure has returned
# What an agent's sandbox needs; their dependencies follow by themselves.
IMAGE_PACKAGES=(
    base-files bash coreutils dash debianutils diffutils findutils gcc git grep gzip hostname libc-bin
    libc6-dev make mawk ncurses-base ncurses-bin procps python3 sed sqlite3 tar tini tmux util-linux
)
# Left out although something depends on them: git's scripts in Perl, and configuration machinery.
IMAGE_SKIP='^(perl|perl-base|perl-modules-.*|libperl.*|liberror-perl|debconf.*|cdebconf|dpkg|ca-certificates|openssl|libpam.*|login.*|media-types|libsystemd-shared|tzdata|manpages.*|systemd.*|init-system-helpers|sensible-utils|base-passwd|netbase)$'
# Left out of the packages: manuals, link-time optimisation, sanitizers, static libraries, Python's own tests.
IMAGE_EXCLUDE='^/usr/share/(doc|man|info|locale|lintian|bug|i18n|zoneinfo|gitweb|git-core/contrib|perl5)/|^/usr/lib/[^/]*-linux-gnu[^/]*/(gconv|perl)/|/lto1$|/lto-wrapper$|/lto-dump|-lto-dump|/(g-)?gcov(-dump|-tool)?(-[0-9]+)?$|lib[atlu]san|libhwasan|libubsan|/(ld|gold)\.gold$|-(gold|gp-[a-z]+|dwp)$|/libgprofng|/gprofng|/python3[^/]*/(test|idlelib|ensurepip|pydoc_data|turtledemo|tkinter|lib2to3)/|^/usr/lib/[^/]*/(libm-[0-9.]*|libc|libmvec|libgprofng|libbfd|libopcodes)\.a$|^/(proc|sys|dev|run|boot)/'

images_key() {
    printf '%s %s\n' "$(root_key)" "$(cat "$LIB"/testbed-{images,critest}.sh | sha256sum)" | sha256sum | cut -c1-16
}

# images_ensure SYSTEM DIR: SYSTEM is the tree of the Debian system, "/" on the host.
images_ensure() {
    local system=${1%/} dir=$2 tmp=$2.tmp
    IMAGES=$dir
    [ -d "$dir" ] && return
    exec {BUILD_LOCK}>"$CACHE/build.lock"
    flock "$BUILD_LOCK"
    if [ ! -d "$dir" ]; then
        note "making the test images in $dir"
        rm -rf --one-file-system "$tmp"
        mkdir -p "$tmp"
        image_busybox "$system" "$tmp/work"
        image_archive "$tmp/work/layer.tar" crab/busybox sh "$tmp/busybox.tar"
        critest_images "$tmp/work/layer.tar" "$tmp/work/critest" "$tmp/critest.tar"
        rm -rf "$tmp/work"
        image_pause "$tmp/work"
        image_archive "$tmp/work/layer.tar" crab/pause /pause "$tmp/pause.tar"
        rm -rf "$tmp/work"
        image_debian "$system" "$tmp/work"
        image_archive "$tmp/work/layer.tar" crab/debian bash "$tmp/debian.tar"
        rm -rf "$tmp/work"
        mv -T "$tmp" "$dir"
        BUILT=1
    fi
    exec {BUILD_LOCK}>&-
}

# The files of every image that no package owns.
image_base() {
    local fs=$1
    mkdir -p "$fs"/{etc,root,proc,sys,dev,run,var,tmp}
    chmod 1777 "$fs/tmp"
    chmod 700 "$fs/root"
    printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n' >"$fs/etc/passwd"
    printf 'root:x:0:\ntty:x:5:\nnogroup:x:65534:\n' >"$fs/etc/group"
    printf '127.0.0.1 localhost\n::1 localhost\n' >"$fs/etc/hosts"
}

image_busybox() {
    local system=$1 work=$2 applet
    local fs=$work/fs
    image_base "$fs"
    mkdir -p "$fs/bin" "$fs/usr"
    ln -s ../bin "$fs/usr/bin"
    ln -s bin "$fs/sbin"
    cp "$system/bin/busybox" "$fs/bin/busybox" || die "no $system/bin/busybox: install busybox-static"
    for applet in $("$fs/bin/busybox" --list); do
        [ "$applet" = busybox ] || ln -s busybox "$fs/bin/$applet"
    done
    tar --numeric-owner --owner=0 --group=0 -C "$fs" -cf "$work/layer.tar" .
}

# What Kubernetes' own does: it waits for its end, and for those of the pod's processes that are orphans.
image_pause() {
    local work=$1
    tool_ensure gcc gcc
    mkdir -p "$work/fs"
    gcc -x c -static -Os -s -o "$work/fs/pause" - <<'SOURCE' || die "cannot compile the pause program"
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int number) { (void)number; _exit(0); }
static void reap(int number) { (void)number; while (waitpid(-1, 0, WNOHANG) > 0) ; }

int main(void) {
    struct sigaction on_end = { .sa_handler = end };
    struct sigaction on_child = { .sa_handler = reap, .sa_flags = SA_NOCLDSTOP };
    if (sigaction(SIGINT, &on_end, 0) || sigaction(SIGTERM, &on_end, 0) || sigaction(SIGCHLD, &on_child, 0))
        return 1;
    for (;;)
        pause();
}
SOURCE
    tar --numeric-owner --owner=0 --group=0 -C "$work/fs" -cf "$work/layer.tar" .
}

image_debian() {
    local system=$1 work=$2 path
    local fs=$work/fs
    image_base "$fs"
    mkdir -p "$fs"/{home,opt,mnt,srv,var/tmp,var/lib,var/log,usr/local/bin,etc/alternatives}
    chmod 1777 "$fs/var/tmp"
    for path in bin sbin lib lib64; do
        [ ! -e "$system/usr/$path" ] || ln -s "usr/$path" "$fs/$path"
    done
    for path in awk nawk cc c89 c99; do
        if [ -L "$system/etc/alternatives/$path" ]; then
            cp -P "$system/etc/alternatives/$path" "$fs/etc/alternatives/$path"
            mkdir -p "$fs/usr/bin"
            cp -P "$system/usr/bin/$path" "$fs/usr/bin/$path"
        fi
    done
    image_packages "$system" >"$work/packages"
    # Lists of packages from before the merge of / and /usr name files by their old place.
    while read -r path; do
        cat "$system/var/lib/dpkg/info/$path.list"
    done <"$work/packages" |
        sed -E 's#^/(bin|sbin|lib|lib64)/#/usr/\1/#' |
        grep -vE "$IMAGE_EXCLUDE" | sort -u |
        while read -r path; do
            # Packages own directories that the image has as links or has made already.
            case $path in /. | /bin | /sbin | /lib | /lib64 | /tmp | /var/tmp | /root) continue ;; esac
            [ ! -e "$system$path" ] && [ ! -L "$system$path" ] || echo "${path#/}"
        done >"$work/files"
    # By way of a tree, because Docker refuses an archive that names a path twice.
    tar --numeric-owner --no-recursion -C "$system/" -cf - -T "$work/files" | tar --numeric-owner -C "$fs" -xpf -
    tar --numeric-owner -C "$fs" -cf "$work/layer.tar" .
}

# The names in /var/lib/dpkg/info of the packages wanted and of all that they depend on.
image_packages() {
    awk -v wanted="${IMAGE_PACKAGES[*]}" -v skip="$IMAGE_SKIP" -v info="$1/var/lib/dpkg/info/" '
        function field(name,   i) {
            for (i = 1; i <= NF; i++)
                if (index($i, name ": ") == 1) return substr($i, length(name) + 3)
            return ""
        }
        # A name without version, architecture qualifier and blanks.
        function bare(s) { sub(/\(.*/, "", s); sub(/:.*/, "", s); gsub(/[ \t]/, "", s); return s }
        function add(name) {
            if ((name in depends) && !(name in seen) && name !~ skip) { seen[name] = 1; queue[++last] = name }
        }
        BEGIN { RS = ""; FS = "\n" }
        field("Status") ~ / installed$/ {
            p = field("Package")
            depends[p] = field("Pre-Depends") "," field("Depends")
            file[p] = field("Multi-Arch") == "same" ? p ":" field("Architecture") : p
            n = split(field("Provides"), provided, ",")
            for (i = 1; i <= n; i++) provider[bare(provided[i])] = p
        }
        END {
            n = split(wanted, w, " ")
            for (i = 1; i <= n; i++) {
                if (!(w[i] in depends)) { print "testbed: package " w[i] " is not installed" > "/dev/stderr"; exit 1 }
                add(w[i])
            }
            for (first = 1; first <= last; first++) {
                n = split(depends[queue[first]], groups, ",")
                for (i = 1; i <= n; i++) {
                    m = split(groups[i], choices, "|")
                    for (j = 1; j <= m; j++) {
                        c = bare(choices[j])
                        if (!(c in depends) && (c in provider)) c = provider[c]
                        if (c in depends) { add(c); break }
                    }
                }
            }
            for (i = 1; i <= last; i++) print file[queue[i]]
        }
    ' "$1/var/lib/dpkg/status"
}

# image_archive LAYER NAME SHELL ARCHIVE
image_archive() {
    local layer=$1 name=$2 shell=$3 archive=$4 arch layer_id config_id manifest_id
    local dir=${1%/*}/oci
    local blobs=$dir/blobs/sha256
    arch=$(dpkg --print-architecture)
    mkdir -p "$blobs"
    layer_id=$(digest "$layer")
    ln "$layer" "$blobs/$layer_id"
    printf '%s' "{\"architecture\":\"$arch\",\"os\":\"linux\",\"created\":\"2026-01-01T00:00:00Z\",\"config\":{\"Env\":[\"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\"],\"Cmd\":[\"$shell\"],\"WorkingDir\":\"/\"},\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"sha256:$layer_id\"]},\"history\":[{\"created\":\"2026-01-01T00:00:00Z\",\"created_by\":\"crab testbed\"}]}" >"$dir/config"
    config_id=$(digest "$dir/config")
    printf '%s' "{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\"config\":{\"mediaType\":\"application/vnd.oci.image.config.v1+json\",\"digest\":\"sha256:$config_id\",\"size\":$(stat -c %s "$dir/config")},\"layers\":[{\"mediaType\":\"application/vnd.oci.image.layer.v1.tar\",\"digest\":\"sha256:$layer_id\",\"size\":$(stat -c %s "$layer")}]}" >"$dir/manifest"
    manifest_id=$(digest "$dir/manifest")
    printf '%s' "{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.index.v1+json\",\"manifests\":[{\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\"digest\":\"sha256:$manifest_id\",\"size\":$(stat -c %s "$dir/manifest"),\"platform\":{\"architecture\":\"$arch\",\"os\":\"linux\"},\"annotations\":{\"io.containerd.image.name\":\"docker.io/$name:latest\",\"org.opencontainers.image.ref.name\":\"latest\"}}]}" >"$dir/index.json"
    printf '%s' "[{\"Config\":\"blobs/sha256/$config_id\",\"RepoTags\":[\"$name:latest\"],\"Layers\":[\"blobs/sha256/$layer_id\"]}]" >"$dir/manifest.json"
    printf '%s' '{"imageLayoutVersion":"1.0.0"}' >"$dir/oci-layout"
    mv "$dir/config" "$blobs/$config_id"
    mv "$dir/manifest" "$blobs/$manifest_id"
    tar --numeric-owner --owner=0 --group=0 -C "$dir" -cf "$archive" oci-layout index.json manifest.json blobs
}

digest() {
    sha256sum <"$1" | cut -d' ' -f1
}
