//go:build holdfast_acks_early

package node

const acksEarly = true
