package transfer

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/txn"
	"github.com/holdfast-mqtt/holdfast/internal/cli/connect"
	"github.com/holdfast-mqtt/holdfast/internal/cli/exit"
	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/cli/input"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
	"github.com/holdfast-mqtt/holdfast/internal/cli/pipeline"
)

// Bounds of what is being written at a time.
const (
	importWindow = 256      // blocks
	importBytes  = 16 << 20 // of keys, values and lines of messages
)

// importFlags are those of the command import.
type importFlags struct {
	from      string
	redisDB   uint64
	absent    bool
	resume    bool
	keepGoing bool
}

// The forms that an import reads.
const (
	fromHoldfast = "holdfast"
	fromRedis    = "redis"
	fromEtcd     = "etcd"
)

// NewImportCommand makes the command import.
func NewImportCommand(c *connect.Flags) *cobra.Command {
	f := importFlags{from: fromHoldfast}
	cmd := c.Command(&cobra.Command{
		Use:   "import [flags] FILE",
		Short: "Write keys and retained messages that were exported, or keys of Redis or etcd",
		Long: `Write the keys and the retained messages of a file, or of standard input if FILE is -,
that "holdfast export" has written. A key that exists is overwritten, unless --absent is
given. The server gives each key a new version. What has expired meanwhile is left out.

With --from redis the file is a dump of Redis (RDB), a file of SAVE or what
"redis-cli --rdb" writes: strings become keys, with their expiry. Keys of other types
are left out, named and counted, and so are those of other databases than --redis-db.

With --from etcd the file is what "etcdctl get --prefix '' --write-out json" prints, or
what etcd's gateway answers to /v3/kv/range. It says nothing of when keys with a lease
expire, so they never do; they are counted.

The command ends at the first line that cannot be imported, and says which. With
--keep-going it names each such line, goes on, and has the exit status 1. While it
runs, FILE.progress says how many lines have been acknowledged; after an interruption
--resume goes on behind them. It publishes no retained message twice then, if the
interruption was less than a day ago: the server remembers which it has published
under the key holdfast-import, which the client must be allowed to write.`,
		Example: `  holdfast import keys.jsonl
  holdfast export -n old.example | holdfast import -n new.example -
  redis-cli --rdb dump.rdb && holdfast import --from redis dump.rdb
  etcdctl get --prefix '' --write-out json | holdfast import --from etcd -`,
		Args: flags.Args("file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("redis-db") && f.from != fromRedis {
				return errors.New("--redis-db is for --from redis")
			}
			return f.run(cmd, c, args[0])
		},
	})
	cmd.Flags().Var(flags.Word(&f.from, fromHoldfast, fromRedis, fromEtcd), "from", "what has written the file: holdfast, redis or etcd (default holdfast)")
	cmd.Flags().Uint64Var(&f.redisDB, "redis-db", 0, "with --from redis: import this database")
	cmd.Flags().BoolVar(&f.absent, "absent", false, "write only keys that do not exist; retained messages are written all the same")
	cmd.Flags().BoolVar(&f.resume, "resume", false, "go on where an import of the same file was interrupted")
	cmd.Flags().BoolVarP(&f.keepGoing, "keep-going", "k", false, "leave out what cannot be imported, and name it")
	return cmd
}

func (f *importFlags) run(cmd *cobra.Command, c *connect.Flags, name string) (err error) {
	in, i := cmd.InOrStdin(), &importing{importFlags: f, file: "standard input", messages: cmd.ErrOrStderr(), remarks: make(map[string]int64)}
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		defer file.Close()
		in, i.file, i.state.path = file, name, name+progressSuffix
	}
	if i.state.noun = "line"; f.from != fromHoldfast {
		i.state.noun = "entry"
	}
	if err := i.state.begin(f.resume); err != nil {
		return err
	}
	if i.client, err = c.Dial(cmd); err != nil {
		return err
	}
	defer i.client.Close()
	if err := i.state.note(); err != nil {
		return err
	}
	i.timeout, i.progress = c.Timeout, output.NewProgress(cmd.ErrOrStderr())
	window := pipeline.Window[block]{Items: importWindow, Bytes: importBytes, SizeBytes: block.sizeBytes}
	err = pipeline.Run(cmd.Context(), window, i.blocks(in), nil, i.start(cmd.Context()), i.report)
	i.progress.End()
	if err = i.state.end(err); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(cmd.ErrOrStderr(), i.summary()); err != nil {
		return err
	}
	if i.refused > 0 {
		return exit.Negative(countedEntries(i.refused, i.state.noun) + " could not be imported")
	}
	return nil
}

// importing is an import that runs.
type importing struct {
	*importFlags
	file     string // for errors
	client   *client.Client
	timeout  time.Duration
	state    state
	messages io.Writer
	progress *output.Progress
	failed   bool        // a block could not be imported
	apart    atomic.Bool // the server does not take several keys in one transaction

	// What this run has done.
	keys, retained             int64
	expired, existed, repeated int64
	refused, named             int64
	remarks                    map[string]int64
}

// blocks are those of the file. What is wrong with a line ends them, unless the import is to
// go on: then it makes a block of its own.
func (i *importing) blocks(in io.Reader) iter.Seq2[block, error] {
	entries := lines(in)
	switch i.from {
	case fromRedis:
		entries = redisKeys(in, i.redisDB, i.mostBytes())
	case fromEtcd:
		entries = etcdKeys(in)
	}
	return func(yield func(block, error) bool) {
		for b, err := range blocks(entries, i.state.done, int(min(i.mostBytes()/2, blockBytes))) {
			var at *lineError
			if i.keepGoing && errors.As(err, &at) {
				b, err = block{{line: at.line, wrong: at.err}}, nil
			} else if err != nil {
				err = fmt.Errorf("%s: %w", i.file, err)
			}
			if !yield(b, err) || err != nil {
				return
			}
		}
	}
}

// mostBytes is the largest packet that the server takes, and so more than the longest value.
func (i *importing) mostBytes() uint64 {
	return uint64(cmp.Or(i.client.MaxPacketSize(), input.MaxBytes))
}

// outcome is that of one block.
type outcome struct {
	block
	expired, existed, repeated int64
	refused                    []refusal
	err                        error // about an entry, and not that alone; the import ends
	at                         int   // the entry; those before it are written
}

// refusal is an entry that cannot be imported.
type refusal struct {
	*entry
	err error
}

// start begins to write a block.
func (i *importing) start(ctx context.Context) func(block) (<-chan *outcome, error) {
	ctx = context.WithoutCancel(ctx)
	return func(b block) (<-chan *outcome, error) {
		o, done := &outcome{block: b}, make(chan *outcome, 1)
		go func() {
			switch {
			case b[0].wrong != nil:
				o.refused = []refusal{{&b[0], b[0].wrong}}
			case b.isMessages():
				o.err = i.publish(ctx, o, b)
			default:
				i.write(ctx, o, b)
			}
			done <- o
		}()
		return done, nil
	}
}

// isRefusal reports whether an error is about what was to be written, so that others may be
// written all the same.
func isRefusal(err error) bool {
	for _, about := range []error{
		client.ErrTooLarge, client.ErrSyntax, client.ErrEmptyKey, client.ErrNotAuthorized, client.ErrInvalidOption, client.ErrQueueFull,
		client.ErrTokenTooLow, client.ErrTokenRequired, client.ErrTokenAhead, client.ErrMalformedToken,
	} {
		if errors.Is(err, about) {
			return true
		}
	}
	return false
}

// write writes keys, in one transaction if that can be. If the server refuses one of them, or the
// transaction, it writes each by itself.
func (i *importing) write(ctx context.Context, o *outcome, b block) {
	if len(b) > 1 && !i.apart.Load() {
		done, err := i.together(ctx, o, b)
		if o.err = err; done || err != nil {
			return
		}
	}
	for n := range b {
		if b[n].skip {
			continue
		}
		if err := i.set(ctx, o, &b[n]); err != nil {
			o.err, o.at = err, n
			return
		}
	}
}

// together writes keys in one transaction. It writes none of them and returns false if the server refuses
// it, or, with --absent, if one of them exists.
func (i *importing) together(ctx context.Context, o *outcome, b block) (done bool, err error) {
	t, now := i.client.Txn(), time.Now()
	expired, bytes := int64(0), 0
	writes := make([]txn.Write, 0, len(b))
	for n := range b {
		e := &b[n]
		if e.skip {
			continue
		}
		key := txn.Key(e.key)
		w := key.Set(e.value)
		if !e.expires.IsZero() {
			left := e.expires.Sub(now)
			if left <= 0 {
				expired++
				continue
			}
			w = w.Expire(left)
		}
		if !e.token.IsZero() {
			w = w.Fence(e.token)
		}
		if i.absent {
			t.If(key.Absent())
		}
		writes = append(writes, w)
		bytes += len(e.value)
	}
	if len(writes) == 0 {
		o.expired += expired
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, i.timeoutOf(bytes))
	defer cancel()
	r, err := t.Then(writes...).Commit(ctx)
	var refused *txn.OperationError
	switch {
	case err == nil && r.Outcome == txn.Committed:
		o.expired += expired
		return true, nil
	case err == nil:
		return false, nil
	case errors.Is(err, client.ErrUnknownCommand), errors.As(err, &refused) && strings.HasPrefix(refused.Quota, "max-txn-"):
		i.apart.Store(true)
		return false, nil
	case refused != nil, isRefusal(err):
		return false, nil
	}
	return false, err
}

// set writes a key.
func (i *importing) set(ctx context.Context, o *outcome, e *entry) error {
	opts, expired := i.options(e, time.Now())
	if expired {
		o.expired++
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, i.timeoutOf(len(e.value)))
	defer cancel()
	_, err := i.client.Set(ctx, e.key, e.value, opts...)
	switch {
	case errors.Is(err, client.ErrNotApplied):
		o.existed++
		return nil
	case isRefusal(err):
		o.refused = append(o.refused, refusal{e, err})
		return nil
	}
	return err
}

// slowest is how many bytes a second are written at least, so that a large value has more time than a
// small one: of a write whose time is over it is not known whether it was carried out.
const slowest = 1 << 20

// timeoutOf is how long the write of so many bytes may take.
func (i *importing) timeoutOf(bytes int) time.Duration {
	return i.timeout + time.Duration(bytes/slowest)*time.Second
}

// options are those of the SET of an entry, which may have expired.
func (f *importFlags) options(e *entry, now time.Time) (opts []client.SetOption, expired bool) {
	if !e.expires.IsZero() {
		left := e.expires.Sub(now)
		if left <= 0 {
			return nil, true
		}
		opts = append(opts, client.Expiry(left))
	}
	if !e.token.IsZero() {
		opts = append(opts, client.Fencing(e.token))
	}
	if f.absent {
		opts = append(opts, client.IfAbsent())
	}
	return opts, false
}

// onceKey is under which key the server remembers which messages an import has published, and
// onceKeep for how long.
const (
	onceKey  = "holdfast-import"
	onceKeep = 24 * time.Hour
)

// publish publishes retained messages in one transaction, which the server carries out once. It makes
// several of it if the server does not take so large a one, or refuses one of the messages.
func (i *importing) publish(ctx context.Context, o *outcome, b block) error {
	sum := sha256.New()
	var list []*entry
	for n := range b {
		sum.Write(b[n].bytes)
		if e := &b[n]; e.expires.IsZero() || time.Until(e.expires) > 0 {
			list = append(list, e)
		} else {
			o.expired++
		}
	}
	id := fmt.Sprintf("%s/%d/%x", i.state.id, b[0].line, sum.Sum(nil)[:16])
	for len(list) > 0 {
		done, err := i.commit(ctx, id, list)
		var refused *txn.OperationError
		switch {
		case err == nil && !done:
			o.repeated += int64(len(list))
			return nil
		case err == nil:
			return nil
		case errors.As(err, &refused):
		case isRefusal(err) && len(b) == 1:
			o.refused = append(o.refused, refusal{list[0], err})
			return nil
		}
		bounded := errors.Is(err, client.ErrTooLarge) || refused != nil && strings.HasPrefix(refused.Quota, "max-txn-")
		if bounded && len(b) > 1 {
			return i.halves(ctx, o, b)
		}
		at := -1
		if refused != nil && !errors.Is(refused.Err, client.ErrQuotaExceeded) {
			at = refused.Number - 1 - i.onces()
		}
		if at < 0 || at >= len(list) {
			return err
		}
		o.refused = append(o.refused, refusal{list[at], refused.Err})
		list = slices.Delete(list, at, at+1)
	}
	return nil
}

// halves publishes the two halves of a block.
func (i *importing) halves(ctx context.Context, o *outcome, b block) error {
	o.expired = 0 // counted again
	first, second := &outcome{}, &outcome{}
	err := i.publish(ctx, first, b[:len(b)/2])
	if err == nil {
		err = i.publish(ctx, second, b[len(b)/2:])
	}
	for _, half := range []*outcome{first, second} {
		o.expired += half.expired
		o.repeated += half.repeated
		o.refused = append(o.refused, half.refused...)
	}
	return err
}

// onces is how many operations of a transaction come before its messages.
func (i *importing) onces() int {
	if i.state.path == "" {
		return 0
	}
	return 1
}

// commit publishes messages; done is false if that was done before.
func (i *importing) commit(ctx context.Context, id string, list []*entry) (done bool, err error) {
	t := i.client.Txn()
	if i.onces() > 0 { // of standard input there is no resuming
		t.Once(onceKey, id, onceKeep).Retry()
	}
	now := time.Now()
	for _, e := range list {
		m := *e.message
		if !e.expires.IsZero() {
			m.Expiry = max(time.Second, e.expires.Sub(now))
		}
		t.Publish(m)
	}
	ctx, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	r, err := t.Commit(ctx)
	return r.Outcome == txn.Committed, err
}

// report counts what has become of a block. After one that could not be imported it counts those
// that were under way, and the import will be resumed in front of it.
func (i *importing) report(o *outcome) error {
	at, err := i.count(o)
	if err != nil && !i.failed && !o.isMessages() {
		i.state.done = max(i.state.done, at.line-1)
	}
	i.failed = i.failed || err != nil
	if i.failed {
		return err
	}
	i.progress.Show("%s", countedEntries(o.last(), i.state.noun))
	return i.state.reached(o.last())
}

// count counts what has become of a block. An error ends the import; it is about the entry at.
func (i *importing) count(o *outcome) (at *entry, err error) {
	b := o.block
	if o.err != nil {
		return &b[o.at], i.explain(&b[o.at], o.err)
	}
	for _, r := range o.refused {
		err := i.explain(r.entry, r.err)
		if !i.keepGoing {
			return r.entry, err
		}
		i.say(err.Error())
		i.refused++
	}
	written := int64(len(b)) - o.expired - o.existed - o.repeated - int64(len(o.refused))
	for n := range b {
		e := &b[n]
		if e.remark != "" {
			i.remarks[e.remark]++
		}
		if e.named {
			i.name(e)
		}
		if e.skip {
			written--
		}
	}
	i.expired += o.expired
	i.existed += o.existed
	i.repeated += o.repeated
	if b.isMessages() {
		i.retained += written
	} else {
		i.keys += written
	}
	return nil, nil
}

// explain says which line could not be imported, and why.
func (i *importing) explain(e *entry, err error) error {
	var ofKey *client.Error
	switch {
	case e.wrong != nil:
		return fmt.Errorf("%s: %s %d: %w", i.file, i.state.noun, e.line, err)
	case e.message == nil && errors.As(err, &ofKey): // it has the key
		return fmt.Errorf("%s: %s %d, key %w", i.file, i.state.noun, e.line, connect.Explain(err))
	}
	return fmt.Errorf("%s: %s %d, %s: %w", i.file, i.state.noun, e.line, e.name(), connect.Explain(err))
}

// say prints a line beside the progress.
func (i *importing) say(line string) {
	i.progress.Erase()
	fmt.Fprintln(i.messages, output.OneLine(line))
}

// mostNamed is how many keys that are left out are named; the others are counted.
const mostNamed = 20

func (i *importing) name(e *entry) {
	switch i.named++; {
	case i.named <= mostNamed:
		i.say(fmt.Sprintf("%s: %s: %s", i.file, e.name(), e.remark))
	case i.named == mostNamed+1:
		i.say(i.file + ": further keys that are left out are only counted")
	}
}

func (i *importing) summary() string {
	said := output.Counted(i.keys, "key") + " written"
	switch {
	case i.retained > 0 && i.keys > 0:
		said = output.Counted(i.keys, "key") + ", " + output.Counted(i.retained, "retained message") + " written"
	case i.retained > 0:
		said = output.Counted(i.retained, "retained message") + " written"
	}
	for _, n := range []struct {
		count int64
		what  string
	}{{i.expired, "had expired"}, {i.existed, "existed"}, {i.repeated, "had been published before"}} {
		if n.count > 0 {
			said += fmt.Sprintf(", %d %s", n.count, n.what)
		}
	}
	for _, remark := range slices.Sorted(maps.Keys(i.remarks)) {
		said += fmt.Sprintf(", %d %s", i.remarks[remark], remark)
	}
	return said
}
