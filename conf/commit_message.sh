#!/bin/sh
# Checks a commit message as git's hook commit-msg: a first line of at most 72 characters without a full stop, then an empty line.
#
#   ln -s ../../conf/commit_message.sh .git/hooks/commit-msg
set -eu

fail() {
    echo "commit message: $*" >&2
    exit 1
}

# git drops comments, and everything below a line of scissors.
message=$(sed -e '/^# -* >8 -*$/,$d' -e '/^#/d' "$1" | sed '/[^[:space:]]/,$!d')
subject=$(printf '%s\n' "$message" | sed -n 1p)
second=$(printf '%s\n' "$message" | sed -n 2p)

case $subject in
"Merge "* | "Revert "* | "fixup! "* | "squash! "* | "amend! "*) exit 0 ;; # git has written these
esac
[ -n "$subject" ] || exit 0 # git itself refuses an empty message
length=$(printf '%s' "$subject" | LC_ALL=C.UTF-8 wc -m)
[ "$length" -le 72 ] || fail "the first line has $length characters: shorten it to 72, and give the reasons below an empty line"
case $subject in
*.) fail "remove the full stop at the end of the first line" ;;
esac
[ -z "$second" ] || fail "leave the second line empty: the first line is the subject"
