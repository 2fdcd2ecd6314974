package access

// SameClaims says whether another identity has the same attributes, but for those that are new
// in each token (RFC 7519, section 4.1).
func (id *Identity) SameClaims(other *Identity) bool {
	count := func(m map[string]string) (n int) {
		for name := range m {
			if !perToken(name) {
				n++
			}
		}
		return n
	}
	for name, value := range id.Attributes {
		if now, has := other.Attributes[name]; !perToken(name) && (!has || now != value) {
			return false
		}
	}
	return count(id.Attributes) == count(other.Attributes)
}

func perToken(claim string) bool {
	return claim == "exp" || claim == "nbf" || claim == "iat" || claim == "jti"
}
