package cache

// say labels the file of a complete object as such, if that has failed before, as it does on a full disk. o.mu is held, and released
// meanwhile; the caller has a reference.
func (o *Object) say() {
	for o.unsaid != nil && o.ending { // who completes it is about to end, or another is at it
		ch := o.change()
		o.mu.Unlock()
		<-ch
		o.mu.Lock()
	}
	if o.unsaid == nil {
		return
	}
	o.ending = true // nobody takes the file meanwhile
	gen := o.gen
	f, err := o.openForRead()
	if err == nil && o.gen == gen {
		l := label{Identity: o.as, State: o.state, Sum: o.sum, Checksum: o.checksum}
		l.Identity.VersionID = o.version
		o.mu.Unlock()
		err = o.c.label(f, l)
		o.mu.Lock()
	}
	if f != nil {
		f.release()
	}
	o.ending = false
	if o.gen == gen {
		o.unsaid = err
	}
	o.finish() // it may have been discarded, and fetched again
	o.notify()
}

// label writes the label of a file that is complete.
func (c *Cache) label(f *objFile, l label) error {
	if c.beforeLabel != nil {
		if err := c.beforeLabel(); err != nil {
			return err
		}
	}
	return f.label(l.encode())
}
