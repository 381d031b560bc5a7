package retry_test

import (
	"testing"

	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/objstore/memstore"
	"github.com/leatfs/leatfs/objstore/retry"
	"github.com/leatfs/leatfs/objstore/storetest"
)

func TestSuite(t *testing.T) {
	storetest.Run(t, func(*testing.T) objstore.Store { return retry.New(memstore.New(), retry.Options{}) }, storetest.Features{KeyBesidePrefix: true})
}
