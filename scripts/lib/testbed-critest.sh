# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# The images of critest, by the names under which it pulls them, in one OCI layout: busybox for all of them, with a web
# server where one is wanted, a program that says its effective user, and users in their configurations. `testbed-services.sh
# start registry' puts them into a real registry inside. What critest pulls by the digest of the published image cannot be
# had, and its shell runs `ls' without looking for the file that is masked: these two specs fail under any runtime.

# critest_images BUSYBOX-LAYER WORK ARCHIVE: WORK is an empty directory.
critest_images() {
    local base=$1 work=$2 archive=$3 blobs=$2/oci/blobs/sha256 index='' name number
    local k8s=registry.k8s.io/e2e-test-images cri=gcr.io/k8s-staging-cri-tools
    mkdir -p "$blobs"
    critest_layer "$work" users critest_users
    critest_layer "$work" web critest_web
    critest_layer "$work" privileges critest_privileges
    ln "$base" "$work/base.tar"
    # Layers after the first one, user, words of the command.
    critest_image "$k8s/busybox:1.29-2" "users" "" sh
    critest_image "$k8s/nginx:1.14-2" "users web" "" nginx 'master process' 80
    critest_image "$k8s/httpd:2.4.39-4" "users web" "" nginx httpd 80
    critest_image "$cri/hostnet-nginx-$(dpkg --print-architecture):latest" "users web" "" nginx 'master process' 12003
    critest_image "$k8s/nonewprivs:1.3" "users privileges" "" /nnp
    critest_image "$cri/test-image-user-uid:latest" users 1002 sh
    critest_image "$cri/test-image-user-username:latest" users www-data sh
    critest_image "$cri/test-image-user-uid-group:latest" users 1003:users sh
    critest_image "$cri/test-image-user-username-group:latest" users www-data:100 sh
    critest_image "$cri/test-image-predefined-group:latest" users 1000 sh
    for name in test-image-latest:latest test-image-tag:test test-image-tag:all; do
        critest_image "$cri/$name" "" "" sh "$name"
    done
    for number in 1 2 3; do
        critest_image "$cri/test-image-$number:latest" "" "" sh "$number"
        critest_image "$cri/test-image-tags:$number" "" "" sh same
    done
    printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[%s]}' "${index%,}" \
        >"$work/oci/index.json"
    printf '%s' '{"imageLayoutVersion":"1.0.0"}' >"$work/oci/oci-layout"
    tar --numeric-owner --owner=0 --group=0 -C "$work/oci" -cf "$archive" oci-layout index.json blobs
}

# critest_layer WORK NAME FUNCTION: what the function puts into the current directory.
critest_layer() {
    mkdir "$1/fs"
    (cd "$1/fs" && "$3") || die "cannot make the layer $2 of critest's images"
    tar --numeric-owner --owner=0 --group=0 -C "$1/fs" -cf "$1/$2.tar" .
    rm -rf "$1/fs"
}

critest_users() {
    mkdir etc bin
    # Debian's busybox has neither.
    cat >bin/pgrep <<'PGREP'
#!/bin/sh
for dir in /proc/[0-9]*; do
    { read -r name <"$dir/comm" && [ "$name" = "$1" ] && echo "${dir#/proc/}"; } 2>/dev/null
done
PGREP
    printf '#!/bin/sh\nexec cat /proc/sysvipc/shm\n' >bin/ipcs
    chmod 755 bin/pgrep bin/ipcs
    cat >etc/passwd <<'PASSWD'
root:x:0:0:root:/root:/bin/sh
www-data:x:33:33:www-data:/var/www:/bin/false
default-user:x:1000:1000::/home:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/bin/false
PASSWD
    cat >etc/group <<'GROUP'
root:x:0:
tty:x:5:
www-data:x:33:
users:x:100:
default-user:x:1000:
group-defined-in-image:x:50000:default-user
nogroup:x:65534:
GROUP
}

# Arguments of the server: a word that its command line shows, and the port.
critest_web() {
    mkdir -p www bin
    echo served >www/index.html
    cat >bin/nginx <<'NGINX'
#!/bin/sh
mkdir -p /var/run
echo $$ >/var/run/nginx.pid
echo "$1 serves"
httpd -f -p "$2" -h /www &
trap 'kill $!; exit 0' TERM QUIT
wait
NGINX
    chmod 755 bin/nginx
}

critest_privileges() {
    gcc -x c -static -Os -s -o nnp - <<'SOURCE'
#include <stdio.h>
#include <unistd.h>

int main(void) { return printf("Effective uid: %d\n", (int)geteuid()) < 0; }
SOURCE
    chmod 4755 nnp
}

# critest_image NAME LAYERS USER WORD...: adds one to `blobs' and `index'.
critest_image() {
    local name=$1 user=$3 layer layers=base word words='' ids='' descriptors='' id config manifest history=''
    layers+=" $2"
    shift 3
    for word; do
        words+="\"$word\","
    done
    for layer in $layers; do
        id=$(digest "$work/$layer.tar")
        [ -e "$blobs/$id" ] || ln "$work/$layer.tar" "$blobs/$id"
        ids+="\"sha256:$id\","
        history+='{"created":"2026-01-01T00:00:00Z","created_by":"crab testbed"},'
        descriptors+=$(printf '{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:%s","size":%s},' \
            "$id" "$(stat -c %s "$work/$layer.tar")")
    done
    config=$(printf '{"architecture":"%s","os":"linux","created":"2026-01-01T00:00:00Z","config":{"User":"%s","Env":["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],"Cmd":[%s],"WorkingDir":"/"},"rootfs":{"type":"layers","diff_ids":[%s]},"history":[%s]}' \
        "$(dpkg --print-architecture)" "$user" "${words%,}" "${ids%,}" "${history%,}" | critest_blob)
    manifest=$(printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:%s","size":%s},"layers":[%s]}' \
        "$config" "$(stat -c %s "$blobs/$config")" "${descriptors%,}" | critest_blob)
    index+=$(printf '{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:%s","size":%s,"annotations":{"io.containerd.image.name":"%s"}},' \
        "$manifest" "$(stat -c %s "$blobs/$manifest")" "$name")
}

# Puts what it reads into `blobs'; prints its digest.
critest_blob() {
    local id
    cat >"$work/blob"
    id=$(digest "$work/blob")
    mv "$work/blob" "$blobs/$id"
    echo "$id"
}
