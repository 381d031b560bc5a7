// Package keeper keeps a mount alive: a process that holds the connection to the kernel and
// starts, restarts and upgrades the worker that serves it.
package keeper
