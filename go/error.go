package kingtide

/*
#include <kingtide.h>
*/
import "C"

import (
	"runtime"
	"strings"
)

// Kind is the kind of an error. It is an error itself, for errors.Is: errors.Is(err, kingtide.ErrConflict). The numbers are those of
// kingtide_status in the C API, and never change.
type Kind int32

// The kinds of errors. docs/errors.md says what each means, and what to do.
const (
	ErrIO              Kind = C.KINGTIDE_IO
	ErrNoSpace         Kind = C.KINGTIDE_NO_SPACE
	ErrCorruption      Kind = C.KINGTIDE_CORRUPTION
	ErrInvalidArgument Kind = C.KINGTIDE_INVALID_ARGUMENT
	ErrNotFound        Kind = C.KINGTIDE_NOT_FOUND
	ErrExists          Kind = C.KINGTIDE_EXISTS
	ErrBusy            Kind = C.KINGTIDE_BUSY
	ErrLocked          Kind = C.KINGTIDE_LOCKED
	ErrNewerFormat     Kind = C.KINGTIDE_NEWER_FORMAT
	ErrPoisoned        Kind = C.KINGTIDE_POISONED
	ErrClosed          Kind = C.KINGTIDE_CLOSED
	ErrCancelled       Kind = C.KINGTIDE_CANCELLED
	ErrIncompatible    Kind = C.KINGTIDE_INCOMPATIBLE
	ErrConflict        Kind = C.KINGTIDE_CONFLICT
	ErrDeadlock        Kind = C.KINGTIDE_DEADLOCK
	ErrLockTimeout     Kind = C.KINGTIDE_LOCK_TIMEOUT
	ErrExpired         Kind = C.KINGTIDE_EXPIRED
	ErrAborted         Kind = C.KINGTIDE_ABORTED
	ErrTooOld          Kind = C.KINGTIDE_TOO_OLD
	ErrFinished        Kind = C.KINGTIDE_FINISHED
	ErrReadOnly        Kind = C.KINGTIDE_READ_ONLY
	ErrLockHeld        Kind = C.KINGTIDE_LOCK_HELD
	ErrPanic           Kind = C.KINGTIDE_PANIC
	ErrOther           Kind = C.KINGTIDE_OTHER
)

// Error returns the kind's name, such as "lock-timeout".
func (k Kind) Error() string { return C.GoString(C.kingtide_status_name(C.int32_t(k))) }

// Error is the error of a failed call. Every error of this package is one, except the io.EOF of Value.ReadAt.
type Error struct {
	// Kind is what a program decides on; errors.Is compares with it.
	Kind Kind
	// Message is for people, in English, with file and offset where they are known.
	Message string
	// Path is the file that the error is about; empty if there is none.
	Path string
	// Offset is the byte offset in that file; -1 if it is not known.
	Offset int64
	// Retryable says that the same call may succeed later with the same arguments.
	Retryable bool
	// TransientConflict says that the transaction may succeed if it is run again from its beginning.
	TransientConflict bool
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the kind.
func (e *Error) Unwrap() error { return e.Kind }

// run makes a call that may fail. What the call uses, keep, is not freed before it returns.
func run(call func(e **C.kingtide_error) C.kingtide_status, keep ...any) error {
	var e *C.kingtide_error
	status := call(&e)
	runtime.KeepAlive(keep)
	if status == C.KINGTIDE_OK {
		return nil
	}
	err := &Error{Kind: Kind(status), Message: Kind(status).Error(), Offset: -1}
	if e == nil {
		return err
	}
	defer C.kingtide_error_free(e)
	err.Message = C.GoString(C.kingtide_error_message(e))
	err.Path = C.GoString(C.kingtide_error_path(e))
	var offset C.uint64_t
	if C.kingtide_error_offset(e, &offset) {
		err.Offset = int64(offset)
	}
	err.Retryable = bool(C.kingtide_error_is_retryable(e))
	err.TransientConflict = bool(C.kingtide_error_is_transient_conflict(e))
	return err
}

// cString copies a name or the text of an option for C. The caller frees it. One with a NUL byte is refused: C would cut it off there.
func cString(s string) (*C.char, error) {
	if strings.IndexByte(s, 0) >= 0 {
		return nil, &Error{Kind: ErrInvalidArgument, Message: "a name or value with a NUL byte", Offset: -1}
	}
	return C.CString(s), nil
}
