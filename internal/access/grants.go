package access

// Grants are what Permissions say of one identity, until they change. They are not changed
// themselves.
type Grants struct {
	// Version is another one for each Grants that the Permissions make. What was decided
	// while the version was the same needs not be asked again; 0: ask each time.
	Version uint64
	Rules   any // belongs to the Permissions
	Quota   Quota
}

// NoGrants bound nothing, and have every decision asked for.
var NoGrants Grants

// Remembered is the last name that a decision allowed, for a caller that asks about the
// same name nearly always. It is not safe for concurrent use.
type Remembered struct {
	version uint64
	name    []byte
}

// maxRemembered is how long a name may be to be remembered, in bytes.
const maxRemembered = 128

// Is says whether the name is remembered as allowed by Grants of this version.
func (r *Remembered) Is(version uint64, name []byte) bool {
	return r.version == version && version != 0 && string(r.name) == string(name)
}

// Remember notes that the name is allowed. The caller has looked for the version before it
// asked for the decision: of Permissions that change meanwhile it then notes what the newer
// ones say for a version that no check has any more.
func (r *Remembered) Remember(version uint64, name []byte) {
	if version == 0 || len(name) > maxRemembered {
		return
	}
	r.version, r.name = version, append(r.name[:0], name...)
}
