// Package record is a disk that remembers: a file in a small FUSE file system, meant to lie under
// a loop device, which sees every write and every flush that a file system on the device makes.
//
// A Log holds them in the order in which they were answered. From it the disk can be had again as
// it may be after a cut of the power at any moment: what was written before the last flush is
// there, and of what came after any part, see Cut. The disk after a cut is an Image: nothing is
// copied, it reads from the log and keeps what is written to it in memory.
//
// The file system is served by a process of its own (Start, Serve). A process that serves a file
// system and has files below it mapped stops for good when its garbage collector waits for a page
// fault that it would have to answer itself. The process ends with the one that started it,
// and takes the mounts and loop devices above it along.
package record
