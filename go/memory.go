package kingtide

/*
#include <kingtide.h>
#include <stdlib.h>
*/
import "C"

import (
	"runtime"
	"unsafe"
)

var zero [1]byte

// some returns the bytes, or another slice with a first element if there are none: C takes a pointer to the first and the length.
//
// `unsafe.Pointer(&b[0])` must stand in the call itself: cgo then checks the bytes for pointers, and not what the caller keeps
// beside them.
func some(b []byte) []byte {
	if len(b) == 0 {
		return zero[:]
	}
	return b
}

// pin returns a pointer to the bytes for a struct of C, valid until the pinner lets go; NULL for nil.
func pin(p *runtime.Pinner, b []byte) unsafe.Pointer {
	if b == nil {
		return nil
	}
	first := &some(b)[0]
	p.Pin(first)
	return unsafe.Pointer(first)
}

// copied returns a copy of bytes of the library. It is never nil.
func copied(data unsafe.Pointer, n C.size_t) []byte {
	out := make([]byte, int(n))
	copy(out, unsafe.Slice((*byte)(data), int(n)))
	return out
}

// read makes a call that reads into a value, and returns a copy; nil for an absent key.
func read(call func(value *C.kingtide_value, e **C.kingtide_error) C.kingtide_status, keep ...any) ([]byte, error) {
	value := C.kingtide_value_new()
	defer C.kingtide_value_free(value)
	err := run(func(e **C.kingtide_error) C.kingtide_status { return call(value, e) }, keep...)
	if err != nil {
		return nil, err
	}
	return taken(value), nil
}

// taken copies what a read found; nil if it found nothing.
func taken(value *C.kingtide_value) []byte {
	if !C.kingtide_value_is_present(value) {
		return nil
	}
	return copied(unsafe.Pointer(C.kingtide_value_data(value)), C.kingtide_value_len(value))
}

type multiGet func(keys *C.kingtide_slice, n C.size_t, values **C.kingtide_value, e **C.kingtide_error) C.kingtide_status

// readMany reads several keys as of one moment; nil stands for an absent one.
func readMany(keys [][]byte, call multiGet, keep ...any) ([][]byte, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	var pinner runtime.Pinner
	defer pinner.Unpin()
	slices, values := make([]C.kingtide_slice, len(keys)), make([]*C.kingtide_value, len(keys))
	for i, key := range keys {
		slices[i] = C.kingtide_slice{data: pin(&pinner, some(key)), len: C.size_t(len(key))}
		values[i] = C.kingtide_value_new()
		defer C.kingtide_value_free(values[i])
	}
	err := run(func(e **C.kingtide_error) C.kingtide_status {
		return call(&slices[0], C.size_t(len(keys)), &values[0], e)
	}, keep...)
	if err != nil {
		return nil, err
	}
	found := make([][]byte, len(keys))
	for i, value := range values {
		found[i] = taken(value)
	}
	return found, nil
}

// text makes a call that returns text.
func text(call func(text **C.kingtide_text, e **C.kingtide_error) C.kingtide_status, keep ...any) (string, error) {
	var t *C.kingtide_text
	if err := run(func(e **C.kingtide_error) C.kingtide_status { return call(&t, e) }, keep...); err != nil {
		return "", err
	}
	defer C.kingtide_text_free(t)
	return C.GoStringN(C.kingtide_text_data(t), C.int(C.kingtide_text_len(t))), nil
}

// list makes a call that returns a list of strings.
func list(call func(names **C.kingtide_strings, e **C.kingtide_error) C.kingtide_status, keep ...any) ([]string, error) {
	var names *C.kingtide_strings
	if err := run(func(e **C.kingtide_error) C.kingtide_status { return call(&names, e) }, keep...); err != nil {
		return nil, err
	}
	defer C.kingtide_strings_free(names)
	all := make([]string, int(C.kingtide_strings_count(names)))
	for i := range all {
		var n C.size_t
		name := C.kingtide_strings_get(names, C.size_t(i), &n)
		all[i] = C.GoStringN(name, C.int(n))
	}
	return all, nil
}
