package kingtide

import "time"

// SetClock replaces the clock that Transact uses and returns a function that restores it.
func SetClock(clock func() time.Time) (restore func()) {
	before := now
	now = clock
	return func() { now = before }
}
