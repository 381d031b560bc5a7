package cache

// SetBeforeWrite has fn called before each write of a run; call it before the first read.
func SetBeforeWrite(c *Cache, fn func()) { c.beforeWrite = fn }
