//go:build !linux

package main

import "syscall"

// dieWithParent does nothing where no child can be tied to its parent: a benchmark that is
// killed leaves its replicas behind.
func dieWithParent() *syscall.SysProcAttr { return nil }
