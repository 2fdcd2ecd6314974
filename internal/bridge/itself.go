package bridge

import (
	"context"
	"errors"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// A bridge to its own broker
//
// The URL of a bridge may lead to the very server that the bridge is part of: by a mistake in the
// configuration, or because a name or a shared address leads to this machine for now. Such a
// bridge passes nothing, so nothing must wait for it either: its session here would fill to its
// bound. The link knows that only when it has connected, by which time it may have made two
// sessions at this broker, one as the bridge's local client and one as its remote client; or when it has
// been refused, for a wrong password for example, over a connection to one of this server's listeners.
//
// It ends those that it has made itself. A session that was there before the link began may hold
// messages for another broker, which this server has acknowledged to their publishers. The
// link keeps them, and ends the subscriptions of its rules, so that no further ones come.

// errItself says that the other broker is this one.
var errItself = errors.New("is this broker itself: nothing passes, and no messages are kept for the bridge, until its url leads to another broker")

// withdraw sees to it that nothing waits for the bridge at this broker.
func (l *Link) withdraw(ctx context.Context) error {
	if l.itself {
		return nil // it has been done
	}
	if !l.made {
		if err := l.unsubscribe(ctx); err != nil {
			return err
		}
	}
	if l.made {
		l.options.EndSession(ClientPrefix + l.config.Name)
	}
	l.itself, l.made, l.begun, l.retained = true, false, false, false
	return nil
}

// unsubscribe ends the subscriptions of the session at this broker. If there is no session it
// makes one, and says so in l.made.
func (l *Link) unsubscribe(ctx context.Context) error {
	local, err := l.connectLocal(ctx, nil)
	if err != nil {
		return err
	}
	defer local.nc.Close()
	if !local.ack.SessionPresent {
		l.made = true
		return nil
	}
	wanted := local.unsubscribe(l.out)
	if err := local.out.send(local.out.buf, nil); err != nil {
		return err
	}
	for wanted > 0 { // what else comes stays in the session
		if err := local.next(); err != nil {
			return err
		}
		if local.packet.Type == mqtt.UNSUBACK {
			wanted--
		}
	}
	l.log.Warn("a bridge that leads to this broker has a session of before: its messages stay, and no further ones come; end it if they are not wanted", "command", "holdfast session delete "+ClientPrefix+l.config.Name)
	return local.out.send(mqtt.AppendDisconnect(nil, mqtt.V5, &mqtt.Disconnect{}), nil)
}
