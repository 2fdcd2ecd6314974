package httpapi_test

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/httpapi"
)

// schema is a part of the description that says what JSON may be.
type schema struct {
	Ref                  string             `json:"$ref"`
	Type                 string             `json:"type"`
	Properties           map[string]*schema `json:"properties"`
	Required             []string           `json:"required"`
	AdditionalProperties *bool              `json:"additionalProperties"`
	Items                *schema            `json:"items"`
	Enum                 []string           `json:"enum"`
	Minimum, Maximum     *float64
}

type content struct {
	Content map[string]struct{ Schema *schema }
}

type operation struct {
	OperationID string
	Parameters  []struct {
		Name, In string
		Required bool
	}
	RequestBody *content
	Responses   map[string]content
}

// description is what the tests look at of openapi.json.
type description struct {
	OpenAPI    string
	Info       struct{ Title, Version string }
	Paths      map[string]map[string]*operation
	Components struct{ Schemas map[string]*schema }
}

func read(t *testing.T) *description {
	t.Helper()
	text, err := os.ReadFile("openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	d := new(description)
	if err := json.Unmarshal(text, d); err != nil {
		t.Fatal(err)
	}
	return d
}

// fits says what of a value does not fit a schema; empty: nothing.
func (d *description) fits(at string, s *schema, value any) (problems []string) {
	bad := func(format string, args ...any) { problems = append(problems, at+": "+fmt.Sprintf(format, args...)) }
	if name, is := strings.CutPrefix(s.Ref, "#/components/schemas/"); is {
		if d.Components.Schemas[name] == nil {
			return []string{at + ": there is no schema " + name}
		}
		return d.fits(at, d.Components.Schemas[name], value)
	}
	switch v := value.(type) {
	case map[string]any:
		if s.Type != "object" {
			bad("an object, want %s", s.Type)
		}
		for _, name := range s.Required {
			if _, has := v[name]; !has {
				bad("%s is missing", name)
			}
		}
		for name, value := range v {
			if property := s.Properties[name]; property != nil {
				problems = append(problems, d.fits(at+"."+name, property, value)...)
			} else if s.AdditionalProperties != nil && !*s.AdditionalProperties {
				bad("%s is not in the schema", name)
			}
		}
	case []any:
		if s.Type != "array" {
			bad("an array, want %s", s.Type)
			break
		}
		for i, item := range v {
			problems = append(problems, d.fits(fmt.Sprintf("%s[%d]", at, i), s.Items, item)...)
		}
	case string:
		if s.Type != "string" || len(s.Enum) > 0 && !slices.Contains(s.Enum, v) {
			bad("the text %q, want %s %v", v, s.Type, s.Enum)
		}
	case bool:
		if s.Type != "boolean" {
			bad("true or false, want %s", s.Type)
		}
	case float64:
		if s.Type != "integer" || v != float64(int64(v)) || s.Minimum != nil && v < *s.Minimum || s.Maximum != nil && v > *s.Maximum {
			bad("the number %v does not fit", v)
		}
	default:
		bad("%v", value)
	}
	return problems
}

// Each route is described with its parameters, and each that is described is there.
func TestTheDescriptionHasEachRoute(t *testing.T) {
	t.Parallel()
	d := read(t)
	if d.OpenAPI != "3.1.0" || d.Info.Title == "" || d.Info.Version == "" {
		t.Errorf("openapi %q, info %+v", d.OpenAPI, d.Info)
	}
	described, ids := 0, map[string]bool{}
	for _, operations := range d.Paths {
		for _, o := range operations {
			described++
			if o.OperationID == "" || ids[o.OperationID] {
				t.Errorf("the operation ID %q is missing or there twice", o.OperationID)
			}
			ids[o.OperationID] = true
		}
	}
	routes := httpapi.Routes()
	if described != len(routes) {
		t.Errorf("%d operations are described, and there are %d", described, len(routes))
	}
	for _, r := range routes {
		o := d.Paths[r[1]][strings.ToLower(r[0])]
		if o == nil {
			t.Errorf("%s %s is not described", r[0], r[1])
			continue
		}
		var query []string
		for _, p := range o.Parameters {
			if p.In == "query" {
				query = append(query, p.Name)
			}
		}
		if want := httpapi.Parameters(r[0], r[1]); !slices.Equal(query, want) {
			t.Errorf("%s %s: parameters %q are described, and there are %q", r[0], r[1], query, want)
		}
		if strings.Contains(r[1], "{id}") && (o.Parameters[0].Name != "id" || o.Parameters[0].In != "path" || !o.Parameters[0].Required) {
			t.Errorf("%s %s: the ID in the path is not described", r[0], r[1])
		}
	}
}

// The schemas have the fields that the program reads and writes, and no others.
func TestTheSchemasHaveEachField(t *testing.T) {
	t.Parallel()
	d := read(t)
	for name, value := range map[string]any{
		"Failure": httpapi.Failure{}, "Client": httpapi.Client{}, "Session": httpapi.Session{}, "Connection": httpapi.Connection{}, "ClientPage": httpapi.ClientPage{},
		"Ended": httpapi.Ended{}, "Subscription": httpapi.Subscription{}, "SubscriptionPage": httpapi.SubscriptionPage{}, "Message": httpapi.Message{},
		"Properties": httpapi.Properties{}, "Published": httpapi.Published{}, "Retained": httpapi.Retained{}, "RetainedPage": httpapi.RetainedPage{}, "Deleted": httpapi.Deleted{},
		"Policy": httpapi.Policy{}, "Answer": httpapi.Answer{}, "Cluster": httpapi.Cluster{}, "Node": httpapi.Node{}, "Transfer": httpapi.Transfer{}, "Transferred": httpapi.Transferred{},
	} {
		s := d.Components.Schemas[name]
		if s == nil {
			t.Errorf("there is no schema %s", name)
			continue
		}
		fields := reflect.TypeOf(value)
		for i := range fields.NumField() {
			field, options, _ := strings.Cut(fields.Field(i).Tag.Get("json"), ",")
			if s.Properties[field] == nil {
				t.Errorf("%s: the field %s is not in the schema", name, field)
			}
			if required := slices.Contains(s.Required, field); required != (options == "") {
				t.Errorf("%s: the field %s is required in the schema: %v, and has the options %q", name, field, required, options)
			}
		}
		if len(s.Properties) != fields.NumField() {
			t.Errorf("%s: the schema has %d fields, and there are %d", name, len(s.Properties), fields.NumField())
		}
	}
}
