package serve

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
)

// maxStrategies is how many groups may have a strategy of their own.
const maxStrategies = 1000

// strategiesValue is a flag of GROUP=STRATEGY that may be repeated, and that is a mapping in the
// configuration file. It implements pflag.SliceValue.
type strategiesValue struct{ to *map[string]limits.Strategy }

// Want says what a value must be, for errors.
func (v strategiesValue) Want() string {
	return fmt.Sprintf("GROUP=STRATEGY, each group once and without /, + and #, with a strategy of round-robin, sticky, hash-client and hash-topic; at most %d", maxStrategies)
}

// Mapping says that the configuration file may have a mapping for it (package config).
func (v strategiesValue) Mapping() {}

func (v strategiesValue) Type() string { return "GROUP=STRATEGY" }

func (v strategiesValue) String() string {
	if v.to == nil {
		return ""
	}
	return strings.Join(v.GetSlice(), ",")
}

func (v strategiesValue) Set(text string) error {
	group, name, found := strings.Cut(text, "=")
	strategy := limits.Strategy(name)
	_, twice := (*v.to)[group]
	if !found || !slices.Contains(limits.Strategies, strategy) || group == "" || strings.ContainsAny(group, "/+#\x00") || twice || len(*v.to) >= maxStrategies {
		return errors.New("want " + v.Want())
	}
	if *v.to == nil {
		*v.to = make(map[string]limits.Strategy)
	}
	(*v.to)[group] = strategy
	return nil
}

// Append implements pflag.SliceValue.
func (v strategiesValue) Append(text string) error { return v.Set(text) }

// Replace implements pflag.SliceValue.
func (v strategiesValue) Replace(texts []string) error {
	*v.to = nil
	for _, text := range texts {
		if err := v.Set(text); err != nil {
			return err
		}
	}
	return nil
}

// GetSlice implements pflag.SliceValue.
func (v strategiesValue) GetSlice() (texts []string) {
	for _, group := range slices.Sorted(maps.Keys(*v.to)) {
		texts = append(texts, group+"="+string((*v.to)[group]))
	}
	return texts
}
