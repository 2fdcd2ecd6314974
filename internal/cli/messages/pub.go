package messages

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/internal/cli/connect"
	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/cli/input"
	"github.com/holdfast-mqtt/holdfast/internal/cli/mqttconn"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
	"github.com/holdfast-mqtt/holdfast/internal/cli/pipeline"
	"github.com/holdfast-mqtt/holdfast/internal/delay"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt/clientconn"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt/wire"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// publication is what a pub command line asks for.
type publication struct {
	topic, message, file string
	lines, null          bool
	qos                  qosValue
	retain, utf8         bool
	expiry               time.Duration
	contentType          string
	responseTopic        string
	correlation          string
	properties           []string
	after                time.Duration
	at, id               string
}

// NewPubCommand makes the command pub.
func NewPubCommand(c *connect.Flags) *cobra.Command {
	p := publication{qos: 1}
	cmd := c.Command(&cobra.Command{
		Use:   "pub [flags] TOPIC [MESSAGE]",
		Short: "Publish messages",
		Long: `Publish a message to a topic: MESSAGE or --message, byte for byte, the contents of
a file with -f (- is standard input), or each line of standard input with -l.

With --after or --at the server delivers the message later, also if it restarts
meanwhile; holdfast timers lists and cancels such messages. Other servers than
Holdfast deliver it at once.

At QoS 1, the default, and 2 the command ends when the server has acknowledged every
message, hence stored it if a session waits for it. Many messages of -l are under way
at a time, in order.

Exit status: 0 published, 2 error. After an error nothing more is published.`,
		Example: `  holdfast pub plant/7/temperature 21.5
  holdfast pub --retain --expiry 1h plant/7/state online
  holdfast pub --after 30m --id reminder/7 invoices/remind 7
  holdfast pub -t plant/7/log -l <events.txt`,
		RunE: func(cmd *cobra.Command, args []string) error { return p.run(cmd, c, args) },
	})
	f := cmd.Flags()
	f.StringVarP(&p.topic, "topic", "t", "", "the `topic`, instead of TOPIC")
	f.StringVarP(&p.message, "message", "m", "", "the message, instead of MESSAGE; it may be empty")
	f.StringVarP(&p.file, "file", "f", "", "publish the contents of this `file`, - for standard input")
	f.BoolVarP(&p.lines, "stdin-lines", "l", false, "publish each line of standard input as a message")
	f.BoolVarP(&p.null, "null", "0", false, "with -l: messages end with NUL instead of a line feed")
	p.qos.addFlag(cmd, "quality of service: 0, 1 or 2")
	f.BoolVarP(&p.retain, "retain", "r", false, "the server keeps the message for later subscribers; an empty message deletes the kept one")
	f.DurationVar(&p.expiry, "expiry", 0, "the message expires after this time, rounded up to seconds")
	f.BoolVar(&p.utf8, "utf8", false, "say that the message is text in UTF-8; the server checks it")
	f.StringVar(&p.contentType, "content-type", "", "`type` of the content, for example application/json")
	f.StringVar(&p.responseTopic, "response-topic", "", "`topic` for a response")
	f.StringVar(&p.correlation, "correlation-data", "", "`data` that the response carries as well")
	f.StringArrayVarP(&p.properties, "user-property", "D", nil, "user `NAME=VALUE`; may be given several times")
	f.DurationVar(&p.after, "after", 0, "the server delivers the message after this time, for example 90s")
	f.StringVar(&p.at, "at", "", "the server delivers the message at this `time`, as RFC 3339 writes it: 2030-01-31T08:00:00Z")
	f.StringVar(&p.id, "id", "", "with --after or --at: `ID` of the timer; it takes the place of one with the same ID")
	cmd.MarkFlagsMutuallyExclusive("after", "at")
	cmd.MarkFlagsMutuallyExclusive("message", "file", "stdin-lines")
	return cmd
}

func (p *publication) run(cmd *cobra.Command, c *connect.Flags, args []string) error {
	messages, err := p.messages(cmd, args)
	if err != nil {
		return err
	}
	if err := c.Prepare(cmd); err != nil {
		return err
	}
	broker, err := mqttconn.NewBroker(c)
	if err != nil {
		return err
	}
	l, err := openLink(cmd.Context(), broker, nil, &mqtt.Connect{CleanStart: true}, func(*link, *mqtt.Publish) {})
	if err != nil {
		return err
	}
	defer l.close()
	n, err := p.publishAll(cmd.Context(), c, l, messages)
	if err != nil && (n > 0 || p.lines) {
		return fmt.Errorf("%w; %s had been acknowledged before", err, output.Counted(int64(n), "message"))
	}
	return err
}

// messages says what to publish. It takes p.topic from the arguments.
func (p *publication) messages(cmd *cobra.Command, args []string) (iter.Seq2[[]byte, error], error) {
	given := cmd.Flags().Changed
	if !given("topic") {
		if len(args) == 0 {
			return nil, fmt.Errorf("no topic is given; usage: %s", cmd.UseLine())
		}
		p.topic, args = args[0], args[1:]
	}
	if err := p.check(given); err != nil {
		return nil, err
	}
	one := func(message []byte) iter.Seq2[[]byte, error] {
		return func(yield func([]byte, error) bool) { yield(message, nil) }
	}
	switch {
	case p.lines:
		return input.Lines(cmd.InOrStdin(), p.null, input.MaxBytes), flags.NothingLeft(cmd, args)
	case given("file"):
		message, err := input.File("--file", p.file, cmd.InOrStdin())
		if err != nil {
			return nil, err
		}
		return one(message), flags.NothingLeft(cmd, args)
	case given("message"):
		return one([]byte(p.message)), flags.NothingLeft(cmd, args)
	case len(args) > 0:
		return one([]byte(args[0])), flags.NothingLeft(cmd, args[1:])
	}
	return nil, fmt.Errorf("no message is given: give MESSAGE, --message, -f FILE, or -l for the lines of standard input; usage: %s", cmd.UseLine())
}

func (p *publication) check(given func(string) bool) error {
	switch {
	case !topic.ValidName([]byte(p.topic)):
		return fmt.Errorf("topic %q: want UTF-8 that is not empty, without +, # and NUL, for example plant/7/temperature", p.topic)
	case given("response-topic") && !topic.ValidName([]byte(p.responseTopic)):
		return fmt.Errorf("--response-topic %q: want UTF-8 that is not empty, without +, # and NUL, for example plant/7/answers", p.responseTopic)
	case given("expiry") && (p.expiry <= 0 || p.expiry > math.MaxUint32*time.Second):
		return fmt.Errorf("--expiry %v: want a duration from 1s to %ds", p.expiry, int64(math.MaxUint32))
	case !validText(p.contentType):
		return fmt.Errorf("--content-type: want UTF-8 of up to %d bytes", wire.MaxString)
	case len(p.correlation) > wire.MaxString:
		return fmt.Errorf("--correlation-data: want up to %d bytes", wire.MaxString)
	case given("after") && p.after < 0:
		return fmt.Errorf("--after %v: want a duration from 0 on", p.after)
	case given("id") && !given("after") && !given("at"):
		return errors.New("--id is for --after and --at only")
	case given("id") && (p.id == "" || len(p.id) > delay.MaxID || !validText(p.id)):
		return fmt.Errorf("--id: want UTF-8 of 1 to %d bytes", delay.MaxID)
	case given("id") && p.lines:
		return errors.New("--id is for one message; with -l each would take the place of the one before")
	case p.null && !p.lines:
		return errors.New("--null is for -l only")
	}
	if given("at") {
		at, err := time.Parse(time.RFC3339, p.at)
		if err != nil {
			return fmt.Errorf("--at %q: want a time as RFC 3339 writes it, for example 2030-01-31T08:00:00Z", p.at)
		}
		p.properties = append(p.properties, delay.AtProperty+"="+strconv.FormatInt(max(0, at.UnixMilli()), 10))
	}
	if given("after") {
		p.properties = append(p.properties, delay.AfterProperty+"="+strconv.FormatInt(p.after.Milliseconds(), 10))
	}
	if given("id") {
		p.properties = append(p.properties, delay.IDProperty+"="+p.id)
	}
	for _, property := range p.properties {
		name, value, ok := strings.Cut(property, "=")
		if !ok {
			return fmt.Errorf("--user-property %q: want NAME=VALUE", property)
		}
		if !validText(name) || !validText(value) {
			return fmt.Errorf("--user-property: want a name and a value of UTF-8, each of up to %d bytes", wire.MaxString)
		}
	}
	return nil
}

// validText reports whether s can be a string of MQTT [MQTT-1.5.4].
func validText(s string) bool { return len(s) <= wire.MaxString && wire.ValidUTF8([]byte(s)) }

// packet is the message to send, without its payload.
func (p *publication) packet() *mqtt.Delivery {
	var props []byte
	if p.utf8 {
		props = mqtt.AppendByteProp(props, mqtt.PropPayloadFormat, 1)
	}
	if p.contentType != "" {
		props = mqtt.AppendStringProp(props, mqtt.PropContentType, p.contentType)
	}
	if p.responseTopic != "" {
		props = mqtt.AppendStringProp(props, mqtt.PropResponseTopic, p.responseTopic)
	}
	if p.correlation != "" {
		props = mqtt.AppendStringProp(props, mqtt.PropCorrelationData, p.correlation)
	}
	for _, property := range p.properties {
		name, value, _ := strings.Cut(property, "=")
		props = mqtt.AppendUserProp(props, name, value)
	}
	return &mqtt.Delivery{
		QoS: byte(p.qos), Retain: p.retain, Topic: []byte(p.topic), Props: props,
		HasExpiry: p.expiry > 0, Expiry: uint32((p.expiry + time.Second - 1) / time.Second),
	}
}

// pubWindow is how many messages are under way at a time, if the server takes so many.
const pubWindow = 1000

// publishAll publishes messages in order and returns how many were acknowledged.
func (p *publication) publishAll(ctx context.Context, c *connect.Flags, l *link, messages iter.Seq2[[]byte, error]) (acknowledged int, err error) {
	m := p.packet()
	begin := func(payload []byte) (<-chan error, error) {
		m.Payload = payload
		limit := clientconn.LargestPacketBytes
		if l.MaxPacket() > 0 {
			limit = int(l.MaxPacket())
		}
		if size := mqtt.DeliverySize(mqtt.V5, m); size > limit {
			return nil, fmt.Errorf("the message makes a packet of %d bytes, the server takes %d", size, limit)
		}
		return l.publish(ctx, m, c.Timeout)
	}
	err = pipeline.Run(ctx, pipeline.Window[[]byte]{Items: pubWindow}, messages, l.ended, begin, func(err error) error {
		if err == nil {
			acknowledged++
		}
		return err
	})
	return acknowledged, l.why(err)
}

// why replaces errConnectionLost by the reason for the end of the connection.
func (l *link) why(err error) error {
	if !errors.Is(err, errConnectionLost) {
		return err
	}
	select {
	case cause := <-l.ended:
		return fmt.Errorf("%w: %w", errConnectionLost, cause)
	case <-time.After(time.Second):
		return err
	}
}

// qosValue is a flag for a quality of service.
type qosValue byte

// Set implements pflag.Value.
func (q *qosValue) Set(s string) error {
	if s != "0" && s != "1" && s != "2" {
		return errors.New("want " + q.Want())
	}
	*q = qosValue(s[0] - '0')
	return nil
}

// Want implements flags.Wanter.
func (q *qosValue) Want() string { return "0, 1 or 2" }

func (q *qosValue) String() string { return string('0' + rune(*q)) }

// Type implements pflag.Value.
func (q *qosValue) Type() string { return "QOS" }

func (q *qosValue) addFlag(cmd *cobra.Command, usage string) {
	cmd.Flags().VarP(q, "qos", "q", usage)
	_ = cmd.RegisterFlagCompletionFunc("qos", cobra.FixedCompletions([]string{"0", "1", "2"}, cobra.ShellCompDirectiveNoFileComp))
}
