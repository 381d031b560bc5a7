package origin

import "testing"

func TestParse(t *testing.T) {
	for in, want := range map[string]URL{
		"s3://b":            {Scheme: S3, Bucket: "b"},
		"s3://b/":           {Scheme: S3, Bucket: "b"},
		"S3://b/p/q":        {Scheme: S3, Bucket: "b", Prefix: "p/q/"},
		"s3://b/p/q/":       {Scheme: S3, Bucket: "b", Prefix: "p/q/"},
		"s3://b//p":         {Scheme: S3, Bucket: "b", Prefix: "/p/"},
		"s3://b/100%25?x#y": {Scheme: S3, Bucket: "b", Prefix: "100%25?x#y/"},
		"s3://my.b-1_X/a b": {Scheme: S3, Bucket: "my.b-1_X", Prefix: "a b/"},
		"file:///data/set/": {Scheme: File, Path: "/data/set"},
		"file:///":          {Scheme: File, Path: "/"},
	} {
		got, err := Parse(in)
		if err != nil || got != want {
			t.Errorf("Parse(%q): got %+v, %v; want %+v", in, got, err, want)
			continue
		}
		if again, err := Parse(got.String()); err != nil || again != got {
			t.Errorf("Parse(%q.String()): got %+v, %v; want %+v", in, again, err, got)
		}
	}
	for _, in := range []string{"", "b", "/data", "s3:b", "s3://", "s3:///p", "s3://../p", "s3://a b/p",
		"s3://user:secret@b/p", "file://data", "file://host/path", "file:///a\x00b", "gs://b"} {
		if got, err := Parse(in); err == nil {
			t.Errorf("Parse(%q): got %+v, want an error", in, got)
		}
	}
}
