// Package lease gives one of many processes the right to do something: leases
// that end by themselves, locks that wait for them, and leaders. All three are
// one key in the store, whose value names the holder and whose expiry is the
// lease's.
//
//	lock, err := lease.NewLock(c, "locks/printer")
//	…
//	held, err := lock.Lock(ctx) // waits
//	if err != nil { … }
//	defer held.Release(context.Background())
//
//	work, cancel := held.Bind(ctx) // ends when the lock is lost
//	defer cancel()
//	_, err = c.Set(work, "printer/job", job, held.Fencing())
//
// # What a lease promises, and what it can't
//
// The [Lease]'s context ends before the store can give the lease to another
// holder: by a safety margin, measured on this machine's monotonic clock from the
// moment before the request that acquired or renewed it was sent. Wall clocks
// don't matter. That is enough for a holder that checks the context before each
// step.
//
// It is not enough for a holder that is delayed between checking and acting: a
// process can be stopped, a machine suspended, a request delayed in a network. The fencing
// token protects against that (protocol, section 5):
// [Lease.Token] is the version under which the lease was acquired, every later
// holder's is higher, and a key that was once written with a token refuses
// writes with a lower one, or none. Write what the lease protects with
// [Lease.Fencing]. [Lock.Edit] does so, and seals the key with its token before
// it reads, so that not even a write of a former holder can come in between.
//
// A deletion removes the token with the key. To keep this protection, write an empty
// value instead of deleting what a lease protects.
//
// # Interoperation
//
// The key is the lease's name and the value its holder, set by SET with NEX and
// PX and deleted by VDEL: leases of the Azure IoT Operations SDKs on the same
// key exclude these and the other way round. Renewals are conditional on the
// version (VER), an extension of Holdfast.
//
// This package does not poll, except once per lease duration while it waits, in case a
// notification is lost.
package lease
