package cache

// CleanBlocks is how many blocks of memory are merely kept: the pool has them back as soon as
// somebody needs them.
func (c *Cache) CleanBlocks() int {
	c.lists.mu.Lock()
	defer c.lists.mu.Unlock()
	return c.lists.spent.len + c.lists.unread.len
}
