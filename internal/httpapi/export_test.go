package httpapi

// Routes are the methods and paths of the API.
func Routes() (all [][2]string) {
	for _, r := range routes {
		all = append(all, [2]string{r.method, r.path})
	}
	return all
}

// Parameters are those of a route.
func Parameters(method, path string) []string {
	for _, r := range routes {
		if r.method == method && r.path == path {
			return r.query
		}
	}
	return nil
}

// Occupy takes all places of requests, and gives back what frees them.
func (a *API) Occupy() (free func()) {
	for range AtOnce {
		a.places <- struct{}{}
	}
	return func() {
		for range AtOnce {
			<-a.places
		}
	}
}
