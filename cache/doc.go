// Package cache keeps what was read from an origin on local disks: one sparse file per
// object version, as large as the object, of which the index says which blocks are there.
//
// # How a block comes in
//
// A reader, or the prefetcher, asks for absent blocks. Consecutive ones become one ranged
// GET (a fetch). Its goroutine takes a buffer from the pool, fills it from the body, computes
// its CRC64NVME and puts it into the object's table of blocks: from then on readers are
// answered from it, while the rest of the body still arrives. Blocks in a row are handed to
// the directory's writers, which store them with O_DIRECT; a block counts as resident only
// after that. A reader never waits for the disk. What is stored and was read is dropped from
// memory; what is stored and unread stays as long as nobody needs the buffer.
//
// When every block is resident the CRCs are combined and compared with the checksum that the
// origin holds. Equal, or nothing to compare with: the object is complete, and its file may
// be lent to the kernel, which then reads it by itself.
//
// # What may be lost
//
// Everything: the origin has it. The index is written in batches by one goroutine (the
// ledger). A killed process loses the residency of the last moments, a lost index is rebuilt
// from the files (Reconcile), a machine that lost power makes files suspect until they are
// read and checked (Scrub). What must never happen is that bytes are believed that are not
// the origin's; so the order of things is always: data first, then the bit that says so, and
// for taking away the reverse.
//
// Nor may a file change that was ever lent: the kernel reads it on when the process is killed, and
// a mapping of it may be left that nobody knows of. So its label says that it is complete before
// it is lent, and a file whose label says so is only ever unlinked, whatever the index says of it.
//
// # Files being written
//
// What the origin does not have yet stands in staging files, of which the cache only keeps the
// names, the labels and the space: what is in them and when it goes it does not know. Eviction,
// Scrub and Reconcile never touch them. An object file becomes a staging file when somebody
// writes to the object (TakeStage), and the reverse when it was published (AdoptStage), each in
// place. Data of the cache gives way to them (stageWatch).
//
// # Locks
//
// The order is Cache.mu, then Object.mu, then one of the leaves: lists.mu, ledger.mu, dir.mu,
// the pool's. No two Object.mu are held together. The index is called under Object.mu (to
// load an extent), never the reverse. No file or network I/O is done under any lock.
//
// # Waiting for memory
//
// Who waits for a buffer and who holds one:
//
//   - A fetch holds, while it waits for its next buffer, only blocks that it has already
//     published and handed to a writer.
//   - A writer needs no buffer to finish, but may stand still with the disk. What is being
//     written is at most a quarter of the pool, twice that with small objects; blocks that wait
//     in a queue and were already read are dropped, and become absent again.
//   - A reader may hold some blocks while it waits for others. Therefore it claims all of its
//     blocks before it begins (Cache.claims), and the claims of all readers together are at
//     most three eighths of the pool. With the half that may be in writing, at least an eighth
//     is in nobody's hands for good: it is filled, dropped, and given back without
//     any reader's or disk's doing.
//   - Prefetch does not start GETs that the pool has no room for, so that few connections
//     stand open waiting for memory.
//
// So each waiting fetch gets a buffer in the end, each reader its blocks, and Demand before
// the others.
package cache
