//go:build !leatfs_faults

package fuse

// testFault does nothing outside of tests.
func testFault([]byte) {}

// testFaultAnswer does nothing outside of tests.
func testFaultAnswer([]byte) {}
