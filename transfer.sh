#!/bin/sh
# Measures how long KEYS (1,000,000) keys with values of 100 bytes take from a Redis into a server, out of
# it, and into another one. It needs redis-server and redis-cli, and ends what it starts.
set -eu
keys=${1:-1000000}
dir=$(mktemp -d)
trap 'kill $redis $first $second 2>/dev/null; wait; rm -rf "$dir"' EXIT
redis= first= second=
port=$(( 20000 + $$ % 10000 ))
go build -o "$dir/holdfast" ./cmd/holdfast
hf="$dir/holdfast"

redis-server --port $port --bind 127.0.0.1 --save '' --enable-debug-command local >"$dir/redis.log" & redis=$!
until redis-cli -p $port ping >/dev/null 2>&1; do kill -0 $redis; done
redis-cli -p $port debug populate "$keys" key 100 >/dev/null
redis-cli -p $port --rdb "$dir/dump.rdb" >/dev/null
"$hf" serve --listen 127.0.0.1:$((port + 1)) --data "$dir/first" 2>"$dir/first.log" & first=$!
"$hf" serve --listen 127.0.0.1:$((port + 2)) --data "$dir/second" 2>"$dir/second.log" & second=$!
until "$hf" health --data "$dir/first" >/dev/null 2>&1 && "$hf" health --data "$dir/second" >/dev/null 2>&1; do kill -0 $first $second; done

now() { date +%s%N; }
measure() {
	began=$(now)
	"$@" 2>"$dir/messages"
	echo "$(( ($(now) - began) / 1000000 )) ms: $what ($(tail -n 1 "$dir/messages"))"
}
what="import --from redis"; measure "$hf" import --from redis -p $((port + 1)) "$dir/dump.rdb"
export_all() { "$hf" export -p $((port + 1)) >"$dir/keys.jsonl"; }
what="export"; measure export_all
what="import"; measure "$hf" import -p $((port + 2)) "$dir/keys.jsonl"
