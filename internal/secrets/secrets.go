// Package secrets hides what is secret in settings, before they are printed or written to a log. The
// command config, the listeners, the admin port, the webhook and the bridges call it. It knows no setting.
package secrets

import (
	"errors"
	"net/url"
	"strings"

	"github.com/holdfast-mqtt/holdfast/internal/header"
)

// hidden stands in the place of what is secret.
const hidden = "…"

// URL is a URL without its user, its password, its query and its fragment. Of a text that may have
// these and is no valid URL nothing is left.
func URL(text string) string {
	u, err := url.Parse(text)
	switch {
	case !strings.ContainsAny(text, "@?#"):
		return text
	case err != nil || u.Opaque != "":
		return hidden
	}
	shown := u.Host + u.EscapedPath()
	if u.User != nil {
		shown = hidden + "@" + shown
	}
	if u.Scheme != "" {
		shown = u.Scheme + "://" + shown
	}
	if u.RawQuery != "" || u.Fragment != "" {
		shown += "?" + hidden
	}
	return shown
}

// Host is a URL with nothing behind its host, and without its user: for servers of which some have the
// secret in the path, https://host/hooks/SECRET. Of a text that is no URL with a host nothing is left.
func Host(text string) string {
	u, err := url.Parse(text)
	switch {
	case text == "":
		return ""
	case err != nil || u.Scheme == "" || u.Host == "":
		return hidden
	}
	shown := u.Host
	if u.User != nil {
		shown = hidden + "@" + shown
	}
	shown = u.Scheme + "://" + shown
	if strings.TrimPrefix(u.EscapedPath(), "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		shown += "/" + hidden
	}
	return shown
}

// Header is a header without its value. All of it is hidden if it is no header.
func Header(text string) string {
	name, _, ok := header.Parse(text)
	if !ok {
		return hidden
	}
	return name + "=" + hidden
}

// OfRequest is the error of a request over HTTP without the URL, which net/http puts in front of it.
func OfRequest(err error) error {
	var request *url.Error
	if errors.As(err, &request) {
		return request.Err
	}
	return err
}
