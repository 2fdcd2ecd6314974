package certs

import (
	"fmt"
	"time"
)

// Validity is when a certificate, or a revocation list, is valid.
type Validity struct {
	Name        string // its file and subject
	From, Until time.Time
}

// Validities reads the files as a listener does, and returns when what is in them is valid.
// The error is what would keep a listener from starting, for example a certificate that
// has expired.
func (f Files) Validities() (all []Validity, err error) {
	if _, err := NewServer(f, false); err != nil {
		return nil, err
	}
	for _, name := range []string{f.Cert, f.ClientCA} {
		if name == "" {
			continue
		}
		file, err := readFile(name)
		if err != nil {
			return nil, err
		}
		certificates, err := parseCertificates(name, file)
		if err != nil {
			return nil, err
		}
		for _, c := range certificates {
			all = append(all, Validity{fmt.Sprintf("%s (%s)", name, c.Subject), c.NotBefore, c.NotAfter})
		}
	}
	if f.CRL == "" {
		return all, nil
	}
	file, err := readFile(f.CRL)
	if err != nil {
		return nil, err
	}
	lists, err := parseLists(file)
	for i, list := range lists {
		if !list.NextUpdate.IsZero() {
			all = append(all, Validity{fmt.Sprintf("%s (list %d of %s)", f.CRL, i+1, list.Issuer), list.ThisUpdate, list.NextUpdate})
		}
	}
	return all, err
}
