package cache

// SetBeforeWrite has fn called before each write of a run; call it before the first read.
func SetBeforeWrite(c *Cache, fn func()) { c.beforeWrite = fn }

// SetBeforeLabel has fn called before a file is labelled as complete, and its error taken for that
// of the label; call it before the first read.
func SetBeforeLabel(c *Cache, fn func() error) { c.beforeLabel = fn }

// SetAtStep has fn called at each step of TakeStage and AdoptStage; call it before them.
func SetAtStep(c *Cache, fn func(step string)) { c.atStep = fn }

// Waiting is how many readers wait for a download of o.
func Waiting(o *Object) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.waiters)
}
