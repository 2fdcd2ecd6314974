package access

// Rules are what one client may do, as an answer of a webhook says it: topic filters and keys
// in the form that they have in the policy, with tokens. They are not changed.
type Rules struct {
	Publish   []string `json:"publish,omitempty"`   // topic filters
	Subscribe []string `json:"subscribe,omitempty"` // topic filters
	Read      []string `json:"read,omitempty"`      // keys of the state store, as patterns
	Write     []string `json:"write,omitempty"`     // the same
}

// Len is how many topic filters and keys the rules have; 0 on nil.
func (r *Rules) Len() int {
	if r == nil {
		return 0
	}
	return len(r.Publish) + len(r.Subscribe) + len(r.Read) + len(r.Write)
}
